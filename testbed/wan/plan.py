"""The hosts of a run and the network they stand in.

One host stands on its own LAN link to its region's router, and one WAN link joins each pair of regions. The emulated
and the virtual network build exactly this. A host is called "<region>/<what it is there>", e.g. "us-east-1/w0".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from testbed.wan.profile import Link, Pair, Profile


def region_of(name: str) -> str:
    """The region part of a host name."""
    return name.rpartition("/")[0]


def label(name: str) -> str:
    """A host's name where it must have no slash, in files and as a name that resolves: "us-west-1-h0"."""
    return name.replace("/", "-")


@dataclass(frozen=True)
class NetworkPlan:
    """The hosts of a run and the network they stand in.

    `extremes`: for the directed pairs of regions that a run changes, a link with the highest rate and the longest round
    trip that they will ever have; hosts' windows and links' queues are made for these. `least_mbit`: of the same pairs
    the lowest rate.
    """

    hosts: tuple[str, ...]
    profile: Profile
    extremes: Mapping[Pair, Link] = field(default_factory=dict)
    least_mbit: Mapping[Pair, float] = field(default_factory=dict)

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

    @cached_property
    def widest(self) -> dict[tuple[str, str], Link]:
        """The same, each as it is when it holds most, with the round trip of a connection over it.

        That is one way of this direction and one of the other, whose delay may be another one.
        """
        most = {pair: self.extremes.get(pair, link) for pair, link in self.wan.items()}
        return {(a, b): replace(link, rtt_ms=(link.rtt_ms + most[b, a].rtt_ms) / 2) for (a, b), link in most.items()}

    def scaled(self, factor: float) -> NetworkPlan:
        """The same network slowed down `factor` times: rates divided, delays multiplied (time dilation)."""
        extremes = {pair: link.scaled(factor) for pair, link in self.extremes.items()}
        least_mbit = {pair: mbit / factor for pair, mbit in self.least_mbit.items()}
        return replace(self, profile=self.profile.scaled(factor), extremes=extremes, least_mbit=least_mbit)

    def rate_mbit(self, sender: str, receiver: str) -> float:
        """Goodput that a message alone on the network gets from one host to another, by the profile."""
        return self.profile.path_mbit(region_of(sender), region_of(receiver))
