"""`reset`: connections break, as where a middlebox has forgotten them or a process in the way begins again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from testbed.errors import InputError
from testbed.faults.base import Fault, Names, connections_named
from testbed.wan.profile import Pair


class Reset(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The connections between the roles of `connections`, as `connections_named` reads them, are reset at a moment.

    What is on its way on one is lost. Both ends hear of it, connect anew, and send again, whole, each message that had
    not arrived: none is lost to the roles, and none comes twice.
    """

    name: ClassVar[str] = "reset"
    target: ClassVar[str] = "connections"
    momentary: ClassVar[bool] = True
    resets: ClassVar[bool] = True
    connections: Names

    def on_connections(self, roles: Sequence[str]) -> Sequence[Pair]:
        if one_way := [name for name in self.connections if ">" in name]:
            raise InputError(f"'{one_way[0]}': a connection is reset for both of its ends; write a=b")
        return connections_named(self.connections, roles)
