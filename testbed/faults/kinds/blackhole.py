"""`blackhole`: one connection loses all that it is given, as behind a firewall or a router that has forgotten it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from testbed.faults.base import Fault, Names, State, connections_named
from testbed.wan.profile import Pair


class Blackhole(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Between the roles of `connections`, as `connections_named` reads them, nothing passes; all others go on."""

    name: ClassVar[str] = "blackhole"
    target: ClassVar[str] = "connections"
    connections: Names

    def on_connections(self, roles: Sequence[str]) -> Sequence[Pair]:
        return connections_named(self.connections, roles)

    def altered(self, link: State) -> State:
        return replace(link, cut=True)
