"""The hosts of a run and the network they stand in.

One host stands on its own LAN link to its region's router, and one WAN link joins each pair of regions. The emulated
and the virtual network build exactly this. A host is called "<region>/<what it is there>", e.g. "us-east-1/w0".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.wan.profile import Link, Profile


def region_of(name: str) -> str:
    """The region part of a host name."""
    return name.rpartition("/")[0]


def label(name: str) -> str:
    """A host's name where it must have no slash, in files and as a name that resolves: "us-west-1-h0"."""
    return name.replace("/", "-")


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
