"""The training systems, one file each: a module of this package, or of a plug-in, that defines a named `System` is one.

What several of them share is in `protocols`.
"""

from testbed.roles import Node, Work
from testbed.systems.protocols.base import SYSTEMS, Options, System, Task

__all__ = ["SYSTEMS", "Node", "Options", "System", "Task", "Work"]
