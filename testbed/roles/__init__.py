"""What a role is: a coroutine that sees only its node; who else takes part; what it remembers; what its work costs."""

from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.roles import Roles, kind_of

__all__ = ["Node", "Roles", "Work", "kind_of"]
