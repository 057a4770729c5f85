"""The long measurement behind `testbed fidelity`: everything a profile's network promises, link by link.

Bounds are those of the project's claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import monotonic, sleep

from testbed.emulation import awake
from testbed.emulation.network import EmulatedNetwork
from testbed.errors import NetworkError
from testbed.fidelity import gate, goodput, messages
from testbed.fidelity.load import every_core_busy
from testbed.fidelity.probes import Channel, Pinger, pause_until, round_trip_ms
from testbed.fidelity.threads import at_once, started
from testbed.fidelity.values import Bound, Value, settled
from testbed.message import SEGMENT_BYTES
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile

RTT_MEDIAN, RTT_P95 = Bound(absolute=1.0), Bound(absolute=2.0)  # ms
INTERVAL, TOTAL = Bound(relative=0.05), Bound(relative=0.01)
COUNTED = Bound(relative=0.01)
AT_MOST = Bound(side="most")
LARGE_REGIONS, LARGE_HOSTS, UP_S, GONE_S = 11, 55, 10.0, 5.0
TRACE_SHARES = (1.0, 0.5, 0.8, 0.3, 0.6, 0.9, 0.4, 1.0, 0.7, 0.35)  # of the profile's rate, one a second

Say = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How long it may take."""

    goodput_s: int = 3
    repeats: int = 3
    sizes: tuple[int, ...] = messages.SIZES
    echoes: int = 100
    changes: int = len(TRACE_SHARES)
    grid: bool = True


FULL = Effort()
QUICK = Effort(goodput_s=2, repeats=1, sizes=messages.SIZES[:-1], echoes=40, changes=5, grid=False)


@dataclass
class Result:
    """All figures, and how they came about."""

    figures: list[Value] = field(default_factory=list)
    mechanism: str = ""
    delay_report: dict[str, object] = field(default_factory=dict)


@awake.kept()
def measure(profile: Profile, effort: Effort, say: Say) -> Result:
    """Build the profile's network and measure it; `say` is told what is being done.

    Raises
    ------
    NetworkError
        The network cannot be built, or nothing comes through where it should.
    """
    result = Result()
    if any(link.impaired for link in profile.pairs.values()):
        say("loss and jitter are left out: how fast TCP is under them is not in the profile")
        profile = unimpaired(profile)
    plan = NetworkPlan(tuple(f"{region}/w{k}" for region in profile.regions for k in range(2)), profile)
    with EmulatedNetwork(plan) as network:
        say(f"{len(plan.wan)} links, {network.delay_mechanism}")
        for step in (_alone, _round_trips, _messages, _trace, _counted):
            say(f"{step.__name__.strip('_').replace('_', ' ')} ...")
            result.figures += step(network, effort)
        result.mechanism, result.delay_report = network.delay_mechanism, network.delay_report()
    say("all at once ...")
    result.figures += goodput.together(profile, effort.goodput_s)
    if effort.grid:
        say("messages at 5 to 1000 Mbit/s and 0 to 60 ms ...")
        with EmulatedNetwork(messages.grid_plan(profile.lan)) as network:
            result.figures += messages.message_figures(network, messages.grid_paths(), effort.sizes, effort.repeats)
        say("11 regions with 55 hosts, up and down ...")
        result.figures += settled(set_up)
    return result


def unimpaired(profile: Profile) -> Profile:
    """The same profile without loss and jitter."""
    pairs = {pair: replace(link, loss_percent=0.0, jitter_ms=0.0) for pair, link in profile.pairs.items()}
    return replace(profile, pairs=pairs)


def set_up() -> list[Value]:
    """How long a large network takes to be built and to be gone."""
    regions = tuple(f"region{i}" for i in range(LARGE_REGIONS))
    pairs = {(a, b): Link(100.0, 60.0) for a in regions for b in regions if a != b}
    hosts = tuple(f"{region}/w{k}" for region in regions for k in range(LARGE_HOSTS // LARGE_REGIONS))
    name = f"{len(regions)} regions, {len(hosts)} hosts"
    began_s = monotonic()
    with EmulatedNetwork(NetworkPlan(hosts, Profile("large", name, regions, Link(1000.0, 0.2), pairs))):
        up_s = monotonic()
    gone_s = monotonic()
    return [
        Value("network up", name, "s", UP_S, up_s - began_s, AT_MOST),
        Value("network gone", name, "s", GONE_S, gone_s - up_s, AT_MOST),
    ]


def _first(network: EmulatedNetwork, region: str) -> str:
    return network.plan.hosts_of(region)[0]


def _paths(network: EmulatedNetwork) -> dict[str, tuple[str, str]]:
    return {f"{a}>{b}": (_first(network, a), _first(network, b)) for a, b in network.plan.wan}


def _alone(network: EmulatedNetwork, effort: Effort) -> list[Value]:
    return goodput.alone(network, _paths(network), effort.goodput_s)


def _messages(network: EmulatedNetwork, effort: Effort) -> list[Value]:
    return messages.message_figures(network, _paths(network), effort.sizes, effort.repeats)


# Round trips


def _round_trips(network: EmulatedNetwork, effort: Effort) -> list[Value]:
    figures = settled(lambda: _echoes(network, effort, "idle"))
    with every_core_busy():
        return figures + settled(lambda: _echoes(network, effort, "every core busy"))


def _echoes(network: EmulatedNetwork, effort: Effort, state: str) -> list[Value]:
    pairs = {
        f"{a}<>{b}": ends for (a, b), ends in zip(network.plan.wan, _paths(network).values(), strict=True) if a < b
    }
    pingers = {name: Pinger(network, *ends, effort.echoes, 0.05) for name, ends in pairs.items()}
    figures = []
    for name, pinger in pingers.items():
        echoes, asked = pinger.result(), round_trip_ms(network, *pairs[name])
        for what, q, bound in (("median", 0.5, RTT_MEDIAN), ("p95", 0.95, RTT_P95)):
            section = f"round trip, {state}, {what}"
            figures.append(Value(section, name, "ms", asked, echoes.quantile(q), bound, {"lost": echoes.lost}))
    return figures


# Trace


def _trace(network: EmulatedNetwork, effort: Effort) -> list[Value]:
    """Rates that change once a second under running traffic, on as many links as may be full at once."""
    return settled(lambda: _tracked(network, effort))


def _tracked(network: EmulatedNetwork, effort: Effort) -> list[Value]:
    names = gate.rounds(network, [name for name in _paths(network)])[0]
    shares = TRACE_SHARES[: effort.changes]
    with ExitStack() as stack:
        channels = {name: stack.enter_context(Channel(network, *_paths(network)[name])) for name in names}
        at_once(Channel.warm, channels.values())
        stop = threading.Event()
        jobs = started(partial(_keep_full, stop=stop), channels.values())
        try:
            changed_s = _play(network, channels, shares)
        finally:
            stop.set()
        for job in jobs:
            job.result()
    return [figure for name in names for figure in _tracking(name, channels[name], shares, changed_s[name])]


def _keep_full(channel: Channel, stop: threading.Event) -> None:
    part = max(SEGMENT_BYTES, round(channel.link.bytes_per_s * 0.02))
    while not stop.is_set():
        channel.put(part)
    channel.await_all()


def _play(network: EmulatedNetwork, channels: Mapping[str, Channel], shares: Sequence[float]) -> dict[str, list[float]]:
    """Set each share one second after the one before; returns when each link changed, and when it was put back (s)."""
    changed_s: dict[str, list[float]] = {name: [] for name in channels}
    sleep(goodput.start_up_s(max(channel.rtt_ms for channel in channels.values())))
    begin_s = monotonic()
    for number, share in enumerate((*shares, 1.0)):
        pause_until(begin_s + number)
        for name in channels:
            network.set_rate(*_regions(name), share * network.plan.wan[_regions(name)].goodput_mbit * network.dilation)
            changed_s[name].append(monotonic())
    return changed_s


def _regions(name: str) -> tuple[str, str]:
    src, _, dst = name.partition(">")
    return src, dst


def _tracking(name: str, channel: Channel, shares: Sequence[float], changed_s: Sequence[float]) -> list[Value]:
    """The worst second and the whole; what arrives was let go one delay earlier."""
    rate, seen = channel.link.goodput_mbit, channel.arrivals
    at_s = [time_s + channel.link.delay_s for time_s in changed_s]
    asked = [share * rate for share in shares]
    got = [seen.mbit(*span) for span in pairwise(at_s)]
    worst = max(range(len(asked)), key=lambda i: abs(got[i] / asked[i] - 1))
    lengths_s = [end - start for start, end in pairwise(at_s)]
    mean = sum(map(float.__mul__, asked, lengths_s)) / sum(lengths_s)
    detail = {"asked_mbit": [round(x, 3) for x in asked], "measured_mbit": [round(x, 3) for x in got]}
    return [
        Value("trace, worst second", name, "Mbit/s", asked[worst], got[worst], INTERVAL, detail),
        Value("trace, in all", name, "Mbit/s", mean, seen.mbit(at_s[0], at_s[-1]), TOTAL),
    ]


# Counters


def _counted(network: EmulatedNetwork, effort: Effort) -> list[Value]:
    """Bytes that tc counted on each link against bytes sent over it."""
    figures, _ = gate.probe(network, gate.GateBounds(counted=COUNTED), network.plan.wan)
    if silent := [figure.name for figure in figures if figure.measured is None]:
        raise NetworkError(f"nothing comes through {', '.join(silent)}")
    return [figure for figure in figures if figure.section == gate.COUNTED]
