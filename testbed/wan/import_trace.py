"""Traces from recordings that others made: the course of iperf3 logs, mahimahi's packet traces, CSV tables.

Each gives a `Recording`; `assemble` makes the trace of it. A capacity of zero cannot be shaped: such an interval
takes the floor that the caller states, and is counted, or is an error where there is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import InputError, nearest
from testbed.message import SEGMENT_BYTES as PAYLOAD_BYTES
from testbed.wan import profile as profiles
from testbed.wan import reading
from testbed.wan.import_profile import DST, SRC, pair_of, rate_column, read_tests, row_pair
from testbed.wan.iperf3 import Failed, Interval
from testbed.wan.profile import Pair, Profile
from testbed.wan.trace import Change, Trace

# A mahimahi line lets one 1,500-byte IP packet pass; of it TCP over IPv4 with timestamps carries this as payload.
CHANGES_LIMIT = 500_000  # longer recordings need a longer interval
SHORT = 0.1  # an iperf3 interval shorter than this share of the longest is the tail of a test, not a rate


@dataclass
class Recording:
    """Changes in any order, when the recording ends, how many intervals took the floor, and tests that failed."""

    changes: list[Change] = field(default_factory=list)
    end_s: float = 0.0
    floored: int = 0
    failed: list[Failed] = field(default_factory=list)

    def add(self, time_s: float, pair: Pair, goodput_mbit: float, floor_mbit: float | None, where: str) -> None:
        """One change; `where` begins the line of an error."""
        if 0 <= goodput_mbit < reading.RATE_LEAST_MBIT and floor_mbit is None:
            needed = f"a link needs {reading.RATE_LEAST_MBIT:g} Mbit/s: say --floor MBIT"
            raise InputError(f"{where}: the rate is {goodput_mbit:g} at {time_s:g} s; {needed}")
        if floor_mbit is not None and 0 <= goodput_mbit < floor_mbit:
            goodput_mbit = floor_mbit
            self.floored += 1
        self.changes.append(Change(time_s, *pair, reading.rate(goodput_mbit, f"{where}: rate")))


def from_iperf3(
    paths: Iterable[Path], pairs: Sequence[Pair], regions: Mapping[str, str], floor_mbit: float | None
) -> Recording:
    """The intervals of iperf3 logs, one test per pair, each beginning at time 0.

    Parameters
    ----------
    pairs : the pairs that follow the one log there is; none: the pair of each log, found as for profiles
    """
    recording = Recording()
    seen: dict[Pair, str] = {}
    for path, test in read_tests(paths, recording.failed):
        mine = pairs or [pair_of(path, test, regions)]
        for pair in mine:
            if pair in seen:
                raise InputError(f"{test.where}: a second test of {pair[0]} to {pair[1]}, after {seen[pair]}")
            seen[pair] = test.where
            course = _without_tail(test.intervals)
            if not course:
                raise InputError(f"{test.where}: no intervals; run iperf3 with -i 1")
            for interval in course:
                time_s = interval.start_s - course[0].start_s
                recording.add(time_s, pair, interval.goodput_mbit, floor_mbit, test.where)
            recording.end_s = max(recording.end_s, course[-1].end_s - course[0].start_s)
    return recording


def _without_tail(course: Sequence[Interval]) -> list[Interval]:
    longest = max((each.end_s - each.start_s for each in course), default=0.0)
    return [each for each in course if each.end_s - each.start_s >= SHORT * longest]


def from_mahimahi(path: Path, pairs: Sequence[Pair], interval_s: float, floor_mbit: float) -> Recording:
    """A mahimahi trace, one line per packet that may pass, its time in ms; counted in intervals of `interval_s`.

    A rest at the end shorter than half an interval is taken into the interval before it. The rate is TCP payload:
    1,448 bytes a packet.
    """
    counts: Counter[int] = Counter()
    last_ms = 0
    for line, text in enumerate(reading.read_text(path).splitlines(), 1):
        where = f"{path}:{line}"
        digits = text.strip(" \t")
        if not digits.isascii() or not digits.isdigit() or len(text) > 15:
            raise InputError(f"{where}: '{text[:40]}' is not a time in whole milliseconds")
        time_ms = int(digits)
        if time_ms < last_ms:
            raise InputError(f"{where}: time goes back from {last_ms} to {time_ms} ms")
        last_ms = time_ms
        counts[math.floor(time_ms / (1e3 * interval_s) + 1e-9)] += 1  # 300 ms begin the fourth of 0.1 s, not the third
    if last_ms == 0:
        raise InputError(f"{path}:1: no packets in it; a trace must last longer than 0 ms")
    end_s = last_ms / 1e3
    number = max(1, math.floor(end_s / interval_s + 0.5))
    _check_number(number * len(pairs), path)
    recording = Recording(end_s=end_s)
    for index in range(number):
        last = index == number - 1
        packets = counts[index] if not last else sum(count for at, count in counts.items() if at >= index)
        length_s = end_s - index * interval_s if last else interval_s
        rate = packets * PAYLOAD_BYTES * 8e-6 / length_s
        for pair in dict.fromkeys(pairs):
            recording.add(index * interval_s, pair, rate, floor_mbit, str(path))
    return recording


def from_csv(
    path: Path, pairs: Sequence[Pair], unit: str | None, column: str | None, floor_mbit: float | None
) -> Recording:
    """A CSV table with the columns `time_s`, a rate (`unit` and `column` as for profiles), and `src`, `dst`.

    Without `src` and `dst` every row is for all of `pairs`. The recording ends with its last row.
    """
    table = reading.read_table(path)
    time_column = table.column("time_s")
    column, to_mbit = rate_column(table, column, unit)
    named = any(name in table.columns for name in SRC)
    if named == bool(pairs):
        told = (
            "names its pairs in columns; leave --pair out"
            if named
            else "has no columns src and dst; say --pair SRC:DST"
        )
        raise InputError(f"{table.where}: the table {told}")
    src, dst = (table.column(*SRC), table.column(*DST)) if named else ("", "")
    recording = Recording()
    seen: set[tuple[Pair, float]] = set()
    for row in table.rows:
        time_s = row.number(time_column)
        if time_s < recording.end_s:
            raise InputError(f"{row.where}: time goes back from {recording.end_s:g} to {time_s:g} s")
        recording.end_s = time_s
        for pair in [row_pair(row, src, dst)] if named else pairs:
            if (pair, time_s) in seen:
                raise InputError(f"{row.where}: {pair[0]} to {pair[1]} stands there twice at {time_s:g} s")
            seen.add((pair, time_s))
            recording.add(time_s, pair, row.number(column) * to_mbit, floor_mbit, row.where)
        _check_number(len(recording.changes), path)
    if not recording.changes:
        raise InputError(f"{table.where}: no rows below the header")
    return recording


def _check_number(changes: int, path: Path) -> None:
    if changes > CHANGES_LIMIT:
        raise InputError(
            f"{path}: {changes:,} changes; at most {CHANGES_LIMIT:,} make a trace: take a longer --interval"
        )


def assemble(name: str, recording: Recording, profile: Profile, period_s: float | None) -> Trace:
    """The trace of a recording for the regions of `profile`; `period_s` (None: hold) must exceed the last change.

    Raises
    ------
    InputError
        A region that the profile does not have, or a period that ends too early.
    """
    for region in dict.fromkeys(region for c in recording.changes for region in (c.src, c.dst)):
        if region not in profile.regions:
            raise InputError(f"profile {profile.name} has no region '{region}'{nearest(region, profile.regions)}")
    order = {pair: index for index, pair in enumerate(profile.pairs)}
    changes = sorted(recording.changes, key=lambda c: (c.time_s, order[c.src, c.dst]))
    if period_s is not None and period_s <= changes[-1].time_s:
        raise InputError(f"--loop {period_s:g}: the last change is at {changes[-1].time_s:g} s; loop later than that")
    stored = profile.name in profiles.available()  # only then can a reader of the trace find it by its name
    return Trace(name, tuple(changes), period_s, profile.name if stored else "")
