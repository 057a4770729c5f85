"""Who takes part in a run and how they are joined: regions, hosts and the links between them.

A `Roles` value names the roles of the tree topology (worker - LPS over the LAN, LPS - GS over the WAN).
A `NetworkPlan` adds the network: one host per role, each on its own LAN link to its region's router, and one
WAN link per pair of regions. Both fabrics build exactly this.

Names: a host is "<region>/<role>", role one of "w0", "w1", ..., "lps", "gs".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.wan.profile import Link, Profile


@dataclass(frozen=True)
class Roles:
    """The roles of one run.

    Parameters
    ----------
    regions : regions that hold data; each has one LPS and `workers_per_region` workers
    workers_per_region : at most 5 (WeightGrad, Appendix B.2)
    server_region : where the global server stands; it may be one of `regions`
    """

    regions: tuple[str, ...]
    workers_per_region: int
    server_region: str

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """All workers; a worker's place in this tuple is its index in the run."""
        return tuple(name for region in self.regions for name in self.workers_of(region))

    @cached_property
    def lpss(self) -> tuple[str, ...]:
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

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The roles that `name` exchanges messages with in the tree topology, in a fixed order."""
        region = region_of(name)
        match kind_of(name):
            case "gs":
                return self.lpss
            case "lps":
                return (self.global_server, *self.workers_of(region))
            case _:
                return (f"{region}/lps",)


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
