"""The long measurement behind `testbed fidelity`: everything a profile's network promises, link by link.

Bounds are those of the project's claim. A message's nominal time is size / rate + one-way delay, on a warm
connection; "back to back" begins the moment its predecessor has come, "in a row" is sent without waiting at all.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, product
from statistics import median
from time import monotonic, sleep

from testbed.errors import NetworkError
from testbed.fabrics.emulation.network import EmulatedNetwork
from testbed.fidelity import gate, iperf
from testbed.fidelity.figures import Bound, Figure
from testbed.fidelity.load import every_core_busy
from testbed.fidelity.probes import Channel, Pinger, cores, message_s, path_link, pause_until, round_trip_ms
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile

KB, MB = 1 << 10, 1 << 20
SIZES = (16 * KB, 64 * KB, 214 * KB, 1 * MB, 4 * MB, 64 * MB)
ROW_BYTES, ROW_LENGTH = 214 * KB, 8
GRID_MBIT, GRID_RTT_MS = (5.0, 20.0, 99.0, 327.0, 1000.0), (0.0, 12.0, 60.0)
LONGEST_S = 60.0  # messages longer than that are measured once, back to back
SEVERAL_S = 10.0  # messages longer than that are not repeated
SLOW_MBIT = 150.0  # links this slow are measured at the same time; faster ones take turns for the machine's sake
IDLE_S = 1.0
ATTEMPTS = 3  # at a goodput alone: a busy machine makes a good link look bad, never a bad one good
CORE_MBIT = 1000.0  # what a core can carry of many flows at once; beyond it, the network is slowed down

GOODPUT = Bound(relative=0.02)
MESSAGE = Bound(relative=0.02, absolute=1.0)  # ms
RTT_MEDIAN, RTT_P95 = Bound(absolute=1.0), Bound(absolute=2.0)  # ms
INTERVAL, TOTAL = Bound(relative=0.05), Bound(relative=0.01)
COUNTED = Bound(relative=0.01)
TRACE_SHARES = (1.0, 0.5, 0.8, 0.3, 0.6, 0.9, 0.4, 1.0, 0.7, 0.35)  # of the profile's rate, one a second

Say = Callable[[str], None]
Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Effort:
    """How long it may take."""

    goodput_s: int = 3
    repeats: int = 3
    sizes: tuple[int, ...] = SIZES
    echoes: int = 100
    changes: int = len(TRACE_SHARES)
    grid: bool = True


FULL = Effort()
QUICK = Effort(goodput_s=2, repeats=1, sizes=SIZES[:-1], echoes=40, changes=5, grid=False)


@dataclass
class Result:
    """All figures, and how they came about."""

    figures: list[Figure] = field(default_factory=list)
    mechanism: str = ""
    delay_report: dict[str, object] = field(default_factory=dict)


def measure(profile: Profile, effort: Effort, say: Say) -> Result:
    """Build the profile's network and measure it; `say` is told what is being done.

    Raises
    ------
    NetworkError
        The network cannot be built, or nothing comes through where it should.
    """
    result = Result()
    plan = NetworkPlan(tuple(f"{region}/w{k}" for region in profile.regions for k in range(2)), profile)
    with EmulatedNetwork(plan) as network:
        say(f"{len(plan.wan)} links, {network.delay_mechanism}")
        for step in (_alone, _round_trips, _messages, _trace, _counted):
            say(f"{step.__name__.strip('_').replace('_', ' ')} ...")
            result.figures += step(network, effort)
        result.mechanism, result.delay_report = network.delay_mechanism, network.delay_report()
    say("all at once ...")
    result.figures += _together(profile, effort)
    if effort.grid:
        say("messages at 5 to 1000 Mbit/s and 0 to 60 ms ...")
        with EmulatedNetwork(grid_plan(profile.lan)) as network:
            result.figures += _message_figures(network, grid_paths(), effort)
    return result


def _first(network: EmulatedNetwork, region: str) -> str:
    return network.plan.hosts_of(region)[0]


def _paths(network: EmulatedNetwork) -> dict[str, tuple[str, str]]:
    return {f"{a}>{b}": (_first(network, a), _first(network, b)) for a, b in network.plan.wan}


# Goodput


def start_up_s(link: Link) -> float:
    """Longer than slow start: ten round trips take a window from 10 packets to 14 MB."""
    return max(1.0, 10 * link.rtt_ms / 1e3)


def _alone(network: EmulatedNetwork, effort: Effort) -> list[Figure]:
    """Each directed pair by itself; one that misses its bound is measured again, and the record says so."""
    figures = []
    for name, ends in _paths(network).items():
        misses: list[float] = []
        figure = _goodputs(network, {name: ends}, effort, "goodput, alone")[0]
        while not figure.ok and figure.measured is not None and len(misses) < ATTEMPTS - 1:
            misses.append(round(figure.measured, 3))
            figure = _goodputs(network, {name: ends}, effort, "goodput, alone")[0]
        figures.append(replace(figure, detail=figure.detail | {"missed_before": misses}) if misses else figure)
    return figures


def _together(profile: Profile, effort: Effort) -> list[Figure]:
    """Every directed pair at once, in a network with enough hosts, slowed down to what the machine can carry."""
    total_mbit = sum(link.goodput_mbit for link in profile.pairs.values())
    dilation = max(1.0, total_mbit / (CORE_MBIT * cores()))
    hosts = hosts_needed(profile)
    plan = NetworkPlan(tuple(f"{region}/w{k}" for region in profile.regions for k in range(hosts)), profile)
    paths = {f"{a}>{b}": ends for (a, b), ends in spread(profile, hosts).items()}
    with EmulatedNetwork(plan, dilation) as network:
        return _goodputs(network, paths, effort, "goodput, all at once")


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


def _goodputs(
    network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], effort: Effort, section: str
) -> list[Figure]:
    """Goodput of all `paths` at once; in the profile's own rates where the network is slowed down."""
    links = {name: network.plan.wan[_regions(name)] for name in paths}
    skip_s = math.ceil(max(start_up_s(link) for link in links.values()))
    seconds = math.ceil(effort.goodput_s * min(network.dilation, 3.0))
    tool = _iperf_all if iperf.version() else _own_all
    measured = tool(network, paths, seconds, skip_s)
    k = network.dilation
    detail = {"tool": "iperf3" if iperf.version() else "own probe", "dilation": round(k, 3)}
    lan_mbit = network.plan.profile.lan.goodput_mbit
    return [
        Figure(section, name, "Mbit/s", k * min(link.goodput_mbit, lan_mbit), k * measured[name], GOODPUT, detail)
        for name, link in links.items()
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
    with ExitStack() as stack, ThreadPoolExecutor(len(paths)) as pool:
        channels = {name: stack.enter_context(Channel(network, *ends)) for name, ends in paths.items()}
        for job in [pool.submit(channel.warm) for channel in channels.values()]:
            job.result()
        jobs = {name: pool.submit(channel.goodput_mbit, float(seconds)) for name, channel in channels.items()}
        return {name: job.result() for name, job in jobs.items()}


def _regions(name: str) -> tuple[str, str]:
    src, _, dst = name.partition(">")
    return src, dst


# Round trips


def _round_trips(network: EmulatedNetwork, effort: Effort) -> list[Figure]:
    figures = _echoes(network, effort, "idle")
    with every_core_busy():
        return figures + _echoes(network, effort, "every core busy")


def _echoes(network: EmulatedNetwork, effort: Effort, state: str) -> list[Figure]:
    pairs = {
        f"{a}<>{b}": ends for (a, b), ends in zip(network.plan.wan, _paths(network).values(), strict=True) if a < b
    }
    pingers = {name: Pinger(network, *ends, effort.echoes, 0.05) for name, ends in pairs.items()}
    figures = []
    for name, pinger in pingers.items():
        echoes, asked = pinger.result(), round_trip_ms(network, *pairs[name])
        for what, q, bound in (("median", 0.5, RTT_MEDIAN), ("p95", 0.95, RTT_P95)):
            section = f"round trip, {state}, {what}"
            figures.append(Figure(section, name, "ms", asked, echoes.quantile(q), bound, {"lost": echoes.lost}))
    return figures


# Messages


def grid_links() -> dict[tuple[str, str], Link]:
    """The fifteen pairs of six regions, one for each rate and RTT of the grid."""
    regions = [f"region{i}" for i in range(6)]
    links = [Link(rate, rtt) for rate, rtt in product(GRID_MBIT, GRID_RTT_MS)]
    return dict(zip(combinations(regions, 2), links, strict=True))


def grid_plan(lan: Link) -> NetworkPlan:
    """Six regions with a host for each other region; both directions of a pair are alike."""
    links = grid_links()
    pairs = links | {(b, a): link for (a, b), link in links.items()}
    regions = tuple(dict.fromkeys(region for pair in pairs for region in pair))
    hosts = tuple(f"{region}/w{k}" for region in regions for k in range(len(regions) - 1))
    return NetworkPlan(hosts, Profile("grid", "rates and delays", regions, lan, pairs))


def grid_paths() -> dict[str, tuple[str, str]]:
    """For each rate and RTT two hosts that nothing else uses: their LAN links may be as slow as the fastest WAN."""
    used: Counter[str] = Counter()

    def take(region: str) -> str:
        used[region] += 1
        return f"{region}/w{used[region] - 1}"

    links = grid_links().items()
    return {f"{link.goodput_mbit:g} Mbit/s {link.rtt_ms:g} ms": (take(a), take(b)) for (a, b), link in links}


def _messages(network: EmulatedNetwork, effort: Effort) -> list[Figure]:
    return _message_figures(network, _paths(network), effort)


def _message_figures(network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], effort: Effort) -> list[Figure]:
    """Message times of every path, one direction of a pair at a time: all slow links at once, fast ones by turns."""
    machine = threading.Lock()
    turns = {pair: threading.Lock() for pair in {frozenset(ends) for ends in paths.values()}}

    def work(name: str) -> list[Figure]:
        ends = paths[name]
        fast = path_link(network, *ends).goodput_mbit > SLOW_MBIT
        pair = turns[frozenset(ends)]

        @contextmanager
        def turn() -> Iterator[None]:
            with pair, machine if fast else nullcontext():
                yield

        with Channel(network, *ends) as channel:
            with turn():
                channel.warm()
            return _times(channel, name, effort, turn)

    with ThreadPoolExecutor(len(paths)) as pool:
        return [figure for figures in pool.map(work, paths) for figure in figures]


def _times(channel: Channel, name: str, effort: Effort, turn: Turn) -> list[Figure]:
    figures = []
    for size in effort.sizes:
        nominal_s = message_s(channel.link, size)
        repeats = effort.repeats if nominal_s < SEVERAL_S else 1
        if nominal_s < LONGEST_S:
            times_s = []
            for _ in range(repeats):
                sleep(IDLE_S)
                with turn():
                    times_s.append(channel.message(size))
            figures.append(_message(channel, name, "message, after an idle second", size, times_s))
    for size in effort.sizes:
        repeats = effort.repeats if message_s(channel.link, size) < SEVERAL_S else 1
        with turn():
            channel.message(effort.sizes[0])  # the predecessor of the first
            times_s = [channel.message(size) for _ in range(repeats)]
        figures.append(_message(channel, name, "message, back to back", size, times_s))
    with turn():
        began_s = monotonic()
        for _ in range(ROW_LENGTH):
            channel.put(ROW_BYTES)
        row_s = channel.await_all() - began_s
    asked_s = message_s(channel.link, ROW_LENGTH * ROW_BYTES)
    what = f"{name} {ROW_LENGTH} x {size_name(ROW_BYTES)}"
    return [*figures, Figure("message, row of eight", what, "ms", 1e3 * asked_s, 1e3 * row_s, MESSAGE)]


def _message(channel: Channel, name: str, section: str, size: int, times_s: Sequence[float]) -> Figure:
    asked_ms = 1e3 * message_s(channel.link, size)
    detail = {"size_bytes": size, "times_ms": [round(1e3 * time_s, 3) for time_s in times_s]}
    return Figure(section, f"{name} {size_name(size)}", "ms", asked_ms, 1e3 * median(times_s), MESSAGE, detail)


def size_name(size_bytes: int) -> str:
    """ "214 KB", "4 MB"; K and M are 2^10 and 2^20."""
    return f"{size_bytes // MB} MB" if size_bytes % MB == 0 else f"{size_bytes / KB:g} KB"


# Trace


def _trace(network: EmulatedNetwork, effort: Effort) -> list[Figure]:
    """Rates that change once a second under running traffic, on as many links as may be full at once."""
    names = gate.rounds(network, [name for name in _paths(network)])[0]
    shares = TRACE_SHARES[: effort.changes]
    with ExitStack() as stack:
        channels = {name: stack.enter_context(Channel(network, *_paths(network)[name])) for name in names}
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(Channel.warm, channels.values()))
            stop = threading.Event()
            jobs = [pool.submit(_keep_full, channel, stop) for channel in channels.values()]
            try:
                changed_s = _play(network, channels, shares)
            finally:
                stop.set()
            for job in jobs:
                job.result()
    return [figure for name in names for figure in _tracking(name, channels[name], shares, changed_s[name])]


def _keep_full(channel: Channel, stop: threading.Event) -> None:
    part = max(1448, round(channel.link.bytes_per_s * 0.02))
    while not stop.is_set():
        channel.put(part)
    channel.await_all()


def _play(network: EmulatedNetwork, channels: Mapping[str, Channel], shares: Sequence[float]) -> dict[str, list[float]]:
    """Set each share one second after the one before; returns when each link changed, and when it was put back (s)."""
    changed_s: dict[str, list[float]] = {name: [] for name in channels}
    sleep(start_up_s(max((channel.link for channel in channels.values()), key=lambda link: link.rtt_ms)))
    begin_s = monotonic()
    for number, share in enumerate((*shares, 1.0)):
        pause_until(begin_s + number)
        for name in channels:
            network.set_rate(*_regions(name), share * network.plan.wan[_regions(name)].goodput_mbit * network.dilation)
            changed_s[name].append(monotonic())
    return changed_s


def _tracking(name: str, channel: Channel, shares: Sequence[float], changed_s: Sequence[float]) -> list[Figure]:
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
        Figure("trace, worst second", name, "Mbit/s", asked[worst], got[worst], INTERVAL, detail),
        Figure("trace, in all", name, "Mbit/s", mean, seen.mbit(at_s[0], at_s[-1]), TOTAL),
    ]


# Counters


def _counted(network: EmulatedNetwork, effort: Effort) -> list[Figure]:
    """Bytes that tc counted on each link against bytes sent over it."""
    figures, _ = gate.probe(network, gate.GateBounds(counted=COUNTED), network.plan.wan)
    if silent := [figure.name for figure in figures if figure.measured is None]:
        raise NetworkError(f"nothing comes through {', '.join(silent)}")
    return [figure for figure in figures if figure.section == gate.COUNTED]
