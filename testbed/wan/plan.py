"""Who takes part in a run and how they are joined: regions, hosts and the links between them.

A `Roles` value names the roles and who talks to whom. In the `tree` workers talk to their region's LPS over
the LAN and LPSs to the GS over the WAN; where a system's LPSs exchange with each other instead (Gaia), they are
a `mesh` on top. In the `flat` topology every worker talks to the GS. A `NetworkPlan` adds the network: one host
per role, each on its own LAN link to its region's router, and one WAN link per pair of regions. Both fabrics
build exactly this.

Names: a host is "<region>/<role>", role one of "w0", "w1", ..., "lps", "gs".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from testbed.wan.profile import Link, Profile


@dataclass(frozen=True)
class Roles:
    """The roles of one run.

    Parameters
    ----------
    regions : regions that hold data; each has `workers_per_region` workers and, in the tree, one LPS
    workers_per_region : at most 5 in the tree (WeightGrad, Appendix B.2)
    server_region : where the global server stands; it may be one of `regions`
    kind : "tree" or "flat"
    mesh : LPSs are also each other's neighbours
    """

    regions: tuple[str, ...]
    workers_per_region: int
    server_region: str
    kind: Literal["tree", "flat"] = "tree"
    mesh: bool = False

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """All workers; a worker's place in this tuple is its index in the run."""
        return tuple(name for region in self.regions for name in self.workers_of(region))

    @cached_property
    def lpss(self) -> tuple[str, ...]:
        """All LPSs; none in the flat topology."""
        if self.kind == "flat":
            return ()
        return tuple(f"{region}/lps" for region in self.regions)

    @property
    def global_server(self) -> str:
        return f"{self.server_region}/gs"

    @cached_property
    def all(self) -> tuple[str, ...]:
        return (self.global_server, *self.lpss, *self.workers)

    @property
    def wan_pairs(self) -> frozenset[tuple[str, str]]:
        """The directed pairs of regions that some role sends over."""
        pairs = ((region_of(name), region_of(peer)) for name in self.all for peer in self.neighbours(name))
        return frozenset((src, dst) for src, dst in pairs if src != dst)

    def workers_of(self, region: str) -> tuple[str, ...]:
        return tuple(f"{region}/w{k}" for k in range(self.workers_per_region))

    def stream_of(self, name: str) -> int:
        """A number of the role's own, which keys its random draws: a worker's index, then LPSs, then the GS."""
        return (*self.workers, *self.lpss, self.global_server).index(name)

    def server_of(self, name: str) -> str | None:
        """Whom `name` sends to: a worker to its LPS (flat: to the GS), an LPS to the GS, the GS to nobody."""
        if name == self.global_server:
            return None
        nearest = f"{region_of(name)}/lps"
        return nearest if nearest in self.lpss and name != nearest else self.global_server

    def clients_of(self, name: str) -> tuple[str, ...]:
        """Whose server `name` is, in a fixed order."""
        if name == self.global_server:
            return self.lpss or self.workers
        return self.workers_of(region_of(name)) if name in self.lpss else ()

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The roles that `name` exchanges messages with, in a fixed order."""
        server = self.server_of(name)
        others = tuple(lps for lps in self.lpss if lps != name) if self.mesh and name in self.lpss else ()
        return (*([server] if server else ()), *self.clients_of(name), *others)


def region_of(name: str) -> str:
    """The region part of a host name."""
    return name.rpartition("/")[0]


def kind_of(name: str) -> str:
    """The kind of a role by its host name: "worker", "lps" or "gs"."""
    role = name.rpartition("/")[2]
    return role if role in ("lps", "gs") else "worker"


@dataclass(frozen=True)
class NetworkPlan:
    """The hosts of a run and the network they stand in."""

    hosts: tuple[str, ...]
    profile: Profile

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The regions that have a host, in order of first appearance."""
        return tuple(dict.fromkeys(region_of(host) for host in self.hosts))

    def hosts_of(self, region: str) -> tuple[str, ...]:
        return tuple(host for host in self.hosts if region_of(host) == region)

    @cached_property
    def wan(self) -> dict[tuple[str, str], Link]:
        """Every directed pair of this plan's regions with its link."""
        return {(a, b): self.profile.link(a, b) for a in self.regions for b in self.regions if a != b}

    def rate_mbit(self, sender: str, receiver: str) -> float:
        """Goodput that a message alone on the network gets from one host to another, by the profile."""
        src, dst = region_of(sender), region_of(receiver)
        if src == dst:
            return self.profile.lan.goodput_mbit
        caps = self.profile.caps
        out = caps[src].egress_mbit if src in caps else None
        into = caps[dst].ingress_mbit if dst in caps else None
        rates = (self.profile.lan.goodput_mbit, self.profile.link(src, dst).goodput_mbit, out, into)
        return min(rate for rate in rates if rate is not None)
