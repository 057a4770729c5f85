"""Goodput of every pair of regions, alone and all at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from testbed.emulation.network import EmulatedNetwork
from testbed.fidelity import gate, iperf
from testbed.fidelity.probes import Channel, cores, round_trip_ms
from testbed.fidelity.threads import at_once
from testbed.fidelity.values import Bound, Value, settled
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Cap, Profile

CORE_MBIT = 1000.0  # what a core can carry of many flows at once; beyond it, the network is slowed down
GOODPUT, CAP = Bound(relative=0.02), Bound(relative=0.03)


def start_up_s(rtt_ms: float) -> float:
    """Longer than slow start: ten round trips take a window from 10 packets to 14 MB."""
    return max(1.0, 10 * rtt_ms / 1e3)


def alone(network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], seconds: int) -> list[Value]:
    """Each path by itself."""

    def work(name: str) -> list[Value]:
        return _asked(network, measured(network, {name: paths[name]}, seconds), "goodput, alone")

    return [figure for name in paths for figure in settled(partial(work, name))]


def together(profile: Profile, seconds: int) -> list[Value]:
    """Every directed pair at once, in a network with enough hosts, slowed down to what the machine can carry.

    A pair that shares a region's cap has no rate of its own then; what all of them get together is compared.
    """
    total_mbit = sum(link.goodput_mbit for link in profile.pairs.values())
    dilation = max(1.0, total_mbit / (CORE_MBIT * cores()))
    hosts = hosts_needed(profile)
    plan = NetworkPlan(tuple(f"{region}/w{k}" for region in profile.regions for k in range(hosts)), profile)
    paths = {f"{a}>{b}": ends for (a, b), ends in spread(profile, hosts).items()}

    def work() -> list[Value]:
        goodputs = measured(network, paths, seconds)
        free = {name: goodput for name, goodput in goodputs.items() if not _capped(profile, *name.split(">"))}
        section = "goodput, all at once"
        return [*_asked(network, free, section), *(cap.figure(goodputs, section) for cap in caps(profile))]

    with EmulatedNetwork(plan, dilation) as network:
        return settled(work)


@dataclass(frozen=True)
class Capped:
    """The links that share a cap, and what they can carry together (Mbit/s)."""

    name: str  # "us-east-1 egress"
    links: tuple[str, ...]
    mbit: float

    def figure(self, goodputs: Mapping[str, float], section: str) -> Value:
        total = sum(goodputs[name] for name in self.links)
        return Value(section, self.name, "Mbit/s", self.mbit, total, CAP)


def _capped(profile: Profile, src: str, dst: str) -> bool:
    ends = (profile.caps.get(src, Cap()).egress_mbit, profile.caps.get(dst, Cap()).ingress_mbit)
    return any(cap is not None for cap in ends)


def caps(profile: Profile) -> list[Capped]:
    """The caps of a profile that alone decide what their links carry together.

    One that is wider than its links together bounds nothing, and where two caps share a link it takes both to tell.
    """
    found = []
    for region, cap in profile.caps.items():
        for way, mbit, end in (("egress", cap.egress_mbit, 0), ("ingress", cap.ingress_mbit, 1)):
            links = {pair: profile.path_mbit(*pair) for pair in profile.pairs if pair[end] == region}
            if mbit is not None and mbit < sum(links.values()):
                found.append(Capped(f"{region} {way}", tuple(f"{a}>{b}" for a, b in links), mbit))
    shared = Counter(name for cap in found for name in cap.links)
    return [cap for cap in found if all(shared[name] == 1 for name in cap.links)]


def hosts_needed(profile: Profile) -> int:
    """Hosts per region so that no host's LAN link holds its WAN links back."""
    most = max(
        sum(min(link.goodput_mbit, profile.lan.goodput_mbit) for (a, b), link in profile.pairs.items() if end in (a, b))
        for end in profile.regions
    )
    return math.ceil(most / (gate.LAN_SHARE * profile.lan.goodput_mbit))


def spread(profile: Profile, hosts: int) -> dict[tuple[str, str], tuple[str, str]]:
    """For each directed pair of regions two hosts, the least loaded ones of each region."""
    load = {f"{region}/w{k}": 0.0 for region in profile.regions for k in range(hosts)}

    def take(region: str, rate: float) -> str:
        host = min((f"{region}/w{k}" for k in range(hosts)), key=lambda name: load[name])
        load[host] += rate
        return host

    by_rate = sorted(profile.pairs.items(), key=lambda item: (-item[1].goodput_mbit, item[0]))
    return {(a, b): (take(a, link.goodput_mbit), take(b, link.goodput_mbit)) for (a, b), link in by_rate}


def measured(network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], seconds: int) -> dict[str, float]:
    """Goodput of all `paths` at once; in the profile's own rates where the network is slowed down (Mbit/s)."""
    skip_s = math.ceil(max(start_up_s(round_trip_ms(network, *ends)) for ends in paths.values()))
    tool = _iperf_all if iperf.version() else _own_all
    goodputs = tool(network, paths, math.ceil(seconds * min(network.dilation, 3.0)), skip_s)
    return {name: network.dilation * mbit for name, mbit in goodputs.items()}


def _asked(network: EmulatedNetwork, goodputs: Mapping[str, float], section: str) -> list[Value]:
    """Each goodput beside what the profile says of its pair of regions."""
    k, profile = network.dilation, network.plan.profile
    detail = {"tool": "iperf3" if iperf.version() else "own probe", "dilation": round(k, 3)}
    return [
        Value(section, name, "Mbit/s", k * profile.path_mbit(*name.split(">")), mbit, GOODPUT, detail)
        for name, mbit in goodputs.items()
    ]


def _iperf_all(
    network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], seconds: int, skip_s: int
) -> dict[str, float]:
    tests: dict[str, iperf.Iperf] = {}
    try:
        for number, (name, ends) in enumerate(paths.items()):
            tests[name] = iperf.Iperf(network, *ends, seconds, skip_s, iperf.PORT + number)
        for test in tests.values():
            test.start()
        return {name: test.goodput_mbit() for name, test in tests.items()}
    finally:
        for test in tests.values():
            test.close()


def _own_all(
    network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], seconds: int, skip_s: int
) -> dict[str, float]:
    with ExitStack() as stack:
        channels = [stack.enter_context(Channel(network, *ends)) for ends in paths.values()]
        at_once(Channel.warm, channels)
        goodputs = at_once(lambda channel: channel.goodput_mbit(float(seconds)), channels)
        return dict(zip(paths, goodputs, strict=True))
