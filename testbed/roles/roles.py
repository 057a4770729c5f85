"""Who takes part in a run and who talks to whom.

In the `tree` workers talk to their region's LPS over the LAN and LPSs to the GS over the WAN; where a system's LPSs
exchange with each other instead (Gaia), they are a `mesh` on top. In the `flat` topology every worker talks to the GS.
Without any server workers talk to each other: in one `ring`, the regions one after the other, or in `rings`, one inside
each region and one across regions of the workers of each number.

Names: a role is "<region>/<role>", which is its host's name too; role is one of "w0", "w1", ..., "lps", "gs".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from testbed.wan.plan import region_of

Kind = Literal["tree", "flat", "ring", "rings"]
SERVERLESS = ("ring", "rings")


@dataclass(frozen=True)
class Roles:
    """The roles of one run.

    Parameters
    ----------
    regions : regions that hold data; each has `workers_per_region` workers and, in the tree, one LPS
    workers_per_region : WeightGrad has at most 5 in the tree (Appendix B.2)
    server_region : where the global server stands; it may be one of `regions`
    kind : "tree", "flat", "ring" or "rings"
    mesh : LPSs are also each other's neighbours
    beside : other kinds whose neighbours are neighbours here, too: of a network that systems of several kinds share
    """

    regions: tuple[str, ...]
    workers_per_region: int
    server_region: str
    kind: Kind = "tree"
    mesh: bool = False
    beside: tuple[Kind, ...] = ()

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """All workers; a worker's place in this tuple is its index in the run."""
        return tuple(name for region in self.regions for name in self.workers_of(region))

    @cached_property
    def lpss(self) -> tuple[str, ...]:
        """All LPSs, which only the tree has."""
        if self.kind != "tree":
            return ()
        return tuple(f"{region}/lps" for region in self.regions)

    @property
    def global_server(self) -> str:
        return f"{self.server_region}/gs"

    @cached_property
    def all(self) -> tuple[str, ...]:
        return self.workers if self.kind in SERVERLESS else (self.global_server, *self.lpss, *self.workers)

    @cached_property
    def wan_pairs(self) -> frozenset[tuple[str, str]]:
        """The directed pairs of regions that some role sends over."""
        pairs = ((region_of(name), region_of(peer)) for name in self.all for peer in self.neighbours(name))
        return frozenset((src, dst) for src, dst in pairs if src != dst)

    def workers_of(self, region: str) -> tuple[str, ...]:
        return self._workers.get(region, ())

    @cached_property
    def _workers(self) -> dict[str, tuple[str, ...]]:
        numbers = range(self.workers_per_region)
        return {region: tuple(f"{region}/w{k}" for k in numbers) for region in self.regions}

    def stream_of(self, name: str) -> int:
        """A number of the role's own, which keys its random draws: a worker's index, then LPSs, then the GS."""
        return self._streams[name]

    @cached_property
    def _streams(self) -> dict[str, int]:
        return {name: k for k, name in enumerate((*self.workers, *self.lpss, self.global_server))}

    def server_of(self, name: str) -> str | None:
        """Whom `name` sends to: a worker to its LPS (flat: to the GS), an LPS to the GS, the GS and peers to nobody."""
        if name == self.global_server or self.kind in SERVERLESS:
            return None
        nearest = f"{region_of(name)}/lps"
        return nearest if nearest in self.lpss and name != nearest else self.global_server

    def clients_of(self, name: str) -> tuple[str, ...]:
        """Whose server `name` is, in a fixed order."""
        if name == self.global_server:
            return self.lpss or (() if self.kind in SERVERLESS else self.workers)
        return self.workers_of(region_of(name)) if name in self.lpss else ()

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The roles that `name` exchanges messages with, in a fixed order."""
        server = self.server_of(name)
        others = tuple(lps for lps in self.lpss if lps != name) if self.mesh and name in self.lpss else ()
        own = (*([server] if server else ()), *self.clients_of(name), *others, *self._peers(name))
        beside = (peer for kind in self.beside for peer in replace(self, kind=kind, beside=()).neighbours(name))
        return tuple(dict.fromkeys((*own, *beside)))

    def _peers(self, name: str) -> tuple[str, ...]:
        """The workers before and after a worker in its rings."""
        if self.kind not in SERVERLESS or kind_of(name) != "worker":
            return ()
        rings = [self.workers]
        if self.kind == "rings":
            number = name.rpartition("/")[2]
            rings = [self.workers_of(region_of(name)), tuple(f"{region}/{number}" for region in self.regions)]
        around = [ring[(ring.index(name) + step) % len(ring)] for ring in rings for step in (1, -1)]
        return tuple(dict.fromkeys(peer for peer in around if peer != name))


def kind_of(name: str) -> str:
    """The kind of a role by its host name: "worker", "lps" or "gs"."""
    role = name.rpartition("/")[2]
    return role if role in ("lps", "gs") else "worker"


def first_of(role: str, peer: str) -> str:
    """Of two roles the one nearer to the root, to which the other connects."""
    return min(role, peer, key=lambda name: (("gs", "lps", "worker").index(kind_of(name)), name))
