"""Times of single messages, on a profile's links and on a grid of rates and round trips.

A message's nominal time is size / rate + one-way delay, on a warm connection; "back to back" begins the moment its
predecessor has come, a "row of eight" is sent without waiting at all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from statistics import median
from time import monotonic, sleep

from testbed.emulation.network import EmulatedNetwork
from testbed.fidelity.probes import Channel, message_s, path_link
from testbed.fidelity.threads import at_once
from testbed.fidelity.values import Bound, Value, settled
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
MESSAGE = Bound(relative=0.02, absolute=1.0)  # ms

Turn = Callable[[], AbstractContextManager[None]]


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


def message_figures(
    network: EmulatedNetwork, paths: Mapping[str, tuple[str, str]], sizes: Sequence[int], repeats: int
) -> list[Value]:
    """Message times of every path, one direction of a pair at a time: all slow links at once, fast ones by turns."""
    machine = threading.Lock()
    turns = {pair: threading.Lock() for pair in {frozenset(ends) for ends in paths.values()}}

    def work(name: str) -> list[Value]:
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
            return _Times(channel, name, repeats, turn).all(sizes)

    return [figure for figures in at_once(work, paths) for figure in figures]


@dataclass(frozen=True)
class _Times:
    """Messages over one connection; whatever loads the link is sent in its turn."""

    channel: Channel
    name: str
    repeats: int
    turn: Turn

    def all(self, sizes: Sequence[int]) -> list[Value]:
        figures = []
        for size in sizes:
            if self._nominal_s(size) < LONGEST_S:
                figures += settled(partial(self._after_idling, size))
        for size in sizes:
            figures += settled(partial(self._back_to_back, size, sizes[0]))
        return figures + settled(self._row)

    def _nominal_s(self, size: int) -> float:
        return message_s(self.channel.link, size)

    def _times(self, size: int) -> int:
        """How often a message is measured."""
        return self.repeats if self._nominal_s(size) < SEVERAL_S else 1

    def _after_idling(self, size: int) -> list[Value]:
        times_s = []
        for _ in range(self._times(size)):
            sleep(IDLE_S)
            with self.turn():
                times_s.append(self.channel.message(size))
        return self._figure("message, after an idle second", size, times_s)

    def _back_to_back(self, size: int, before: int) -> list[Value]:
        with self.turn():
            self.channel.message(before)  # the predecessor of the first
            times_s = [self.channel.message(size) for _ in range(self._times(size))]
        return self._figure("message, back to back", size, times_s)

    def _row(self) -> list[Value]:
        with self.turn():
            began_s = monotonic()
            for _ in range(ROW_LENGTH):
                self.channel.put(ROW_BYTES)
            row_s = self.channel.await_all() - began_s
        asked_s = self._nominal_s(ROW_LENGTH * ROW_BYTES)
        what = f"{self.name} {ROW_LENGTH} x {size_name(ROW_BYTES)}"
        return [Value("message, row of eight", what, "ms", 1e3 * asked_s, 1e3 * row_s, MESSAGE)]

    def _figure(self, section: str, size: int, times_s: Sequence[float]) -> list[Value]:
        detail = {"size_bytes": size, "times_ms": [round(1e3 * time_s, 3) for time_s in times_s]}
        asked_ms, what = 1e3 * self._nominal_s(size), f"{self.name} {size_name(size)}"
        return [Value(section, what, "ms", asked_ms, 1e3 * median(times_s), MESSAGE, detail)]


def size_name(size_bytes: int) -> str:
    """ "214 KB", "4 MB"; K and M are 2^10 and 2^20."""
    return f"{size_bytes // MB} MB" if size_bytes % MB == 0 else f"{size_bytes / KB:g} KB"
