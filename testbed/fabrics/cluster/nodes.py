"""A watch over the nodes of a cluster that roles stand on.

Ray says that a node is gone when it has not answered for a while, some ten to thirty seconds by its own settings; that
a role's process died, at once. Peers may notice before: their connections break.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from time import monotonic, sleep
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

from testbed.errors import RoleDied, RunError
from testbed.fabrics.cluster.actor import look
from testbed.fabrics.cluster.links import on
from testbed.fabrics.cluster.placement import Spot

LOOK_S = 3.0  # between two looks at which nodes there are
NOTICE_S = 90.0  # for Ray to notice that a node is gone whose roles others wait for in vain
ASK_S = 5.0


class Nodes:
    """The nodes that roles stand on, by role."""

    def __init__(self, spots: Mapping[str, Spot]) -> None:
        self._spots = spots
        self._looked_s = -LOOK_S

    def check(self, pids: Mapping[str, int]) -> None:
        """Raise RoleDied where a node is gone."""
        if monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = monotonic()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        gone: dict[str, list[str]] = {}
        for role, spot in self._spots.items():
            if spot.node_id not in alive:
                gone.setdefault(spot.address, []).append(role)
        if gone:
            raise RoleDied("; ".join(f"{', '.join(roles)}: node {at} is gone" for at, roles in gone.items()))

    def find_cause(self, error: RunError, pids: Mapping[str, int], actors: Mapping[str, Any]) -> None:
        """Raise RoleDied where a node or a process is gone that `error` is of, or that its role waited for."""
        if not isinstance(error, RoleDied) or not (error.waited or error.gone):
            return
        until_s = monotonic() + (NOTICE_S if error.waited else 0.0)
        while True:
            self._looked_s = -LOOK_S
            self.check(pids)
            if dead := error.gone or _dead(actors):
                sleep(1.0)  # Ray says of a role that it died before it says so of the node
                self._looked_s = -LOOK_S
                self.check(pids)
                raise RoleDied(f"{dead}: its process on node {self._spots[dead].address} died")
            if monotonic() >= until_s:
                return
            sleep(1.0)

    def look(self, pids: Mapping[str, int]) -> dict[str, tuple[float, str]]:
        """How long each role's process has worked (seconds), and what ails it."""
        by_node: dict[Spot, dict[str, int]] = {}
        for role, pid in pids.items():
            by_node.setdefault(self._spots[role], {})[role] = pid
        task: Any = ray.remote(look)
        asked = [
            task.options(num_cpus=0, scheduling_strategy=on(spot)).remote(roles) for spot, roles in by_node.items()
        ]
        try:
            found = ray.get(asked, timeout=ASK_S)
        except (GetTimeoutError, RayError):
            return {role: (0.0, "") for role in pids}
        return {role: seen for each in found for role, seen in each.items()}

    def end(self, actors: Iterable[Any], pids: Collection[int]) -> None:
        """End the actors; those of a node that is gone have ended."""
        for actor in actors:
            ray.kill(actor)

    def close(self) -> None:
        """The cluster stays."""


def _dead(actors: Mapping[str, Any]) -> str:
    """A role whose actor has died, as far as Ray knows; "" where it knows of none."""
    asked = {actor.doing.remote(): role for role, actor in actors.items()}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S)  # one that computes does not
    for each in answered:
        try:
            ray.get(each)
        except ActorDiedError:
            return asked[each]
        except RayError:  # it has failed by itself, or cannot be reached, and Ray does not know yet why
            continue
    return ""
