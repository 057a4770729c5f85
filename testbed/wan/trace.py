"""A bandwidth trace: how the capacity of WAN links changes over a run.

On disk a trace is CSV with the columns `time_s,src_region,dst_region,goodput_mbit`, ordered by time; lines that
begin with `#` before the header are comments, and of these `# end: hold | loop` says what follows the last row
(default: hold). With `loop` the trace begins again `period_s` (`# period_s: 60`) after its start. Before a pair's
first row, and for pairs that never occur, the profile's rate holds. `# profile: NAME` names the profile that the
trace was made for: a run on some of its regions takes the rows of those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError, nearest
from testbed.wan import profile as profiles
from testbed.wan import reading
from testbed.wan.reading import Row

TRACES = Path(__file__).resolve().parents[2] / "topologies" / "traces"
COLUMNS = ("time_s", "src_region", "dst_region", "goodput_mbit")
ENDS = ("hold", "loop")
HINT = "a trace is a CSV file, see topologies/traces/"


@dataclass(frozen=True)
class Change:
    """From `time_s` on the run's clock, the link from `src` to `dst` has a goodput of `goodput_mbit`."""

    time_s: float
    src: str
    dst: str
    goodput_mbit: float


@dataclass(frozen=True)
class Trace:
    """Changes in order of time; `period_s` is set where the trace loops, `profile` where it was made for one."""

    name: str
    changes: tuple[Change, ...]
    period_s: float | None = None
    profile: str = ""

    def after(self, clock_s: float) -> Iterator[Change]:
        """The changes later than `clock_s`, in order, without end where the trace loops."""
        lap = 0 if self.period_s is None else max(0, math.floor(clock_s / self.period_s))
        while True:
            shift_s = lap * (self.period_s or 0.0)
            for change in self.changes:
                if change.time_s + shift_s > clock_s:
                    yield Change(change.time_s + shift_s, change.src, change.dst, change.goodput_mbit)
            if self.period_s is None:
                return
            lap += 1

    def at(self, clock_s: float) -> dict[tuple[str, str], float]:
        """The goodput in force at `clock_s` of every pair that the trace has changed by then."""
        rates: dict[tuple[str, str], float] = {}
        into_s = clock_s
        if self.period_s is not None and clock_s >= self.period_s:
            rates = {(change.src, change.dst): change.goodput_mbit for change in self.changes}
            into_s = math.fmod(clock_s, self.period_s)
        for change in self.changes:
            if change.time_s <= into_s:
                rates[change.src, change.dst] = change.goodput_mbit
        return rates


def load(path: Path, regions: tuple[str, ...]) -> Trace:
    """Read the part of a trace whose pairs lie in `regions`.

    Raises
    ------
    InputError
        The file cannot be read or something in it cannot be: names file and line. A region outside `regions` is an
        error unless the trace names a profile that has it.
    """
    table = reading.read_table(path, HINT)
    settings = dict(_setting(line) for line in table.comments if ":" in line)
    if table.columns != COLUMNS:
        raise InputError(f"{table.where}: columns must be {','.join(COLUMNS)}")
    profile = settings.get("profile", "")
    known = regions
    if profile:
        try:
            known = (*regions, *profiles.load(profile).regions)
        except InputError as error:
            raise InputError(f"{path}: profile: {error}") from None
    changes = list(_changes(table.rows, known))
    if not changes:
        raise InputError(f"{path}: no changes in it")
    period_s = _period(settings, changes[-1].time_s, path)
    mine = tuple(change for change in changes if change.src in regions and change.dst in regions)
    if not mine:
        raise InputError(f"{path}: no pair of this run's regions in it; they are {', '.join(regions)}")
    return Trace(path.stem, mine, period_s, profile)


def _changes(rows: Iterator[Row], regions: tuple[str, ...]) -> Iterator[Change]:
    """The rows' changes; time must not go back, and a pair not stand twice at one time."""
    last_s, now = 0.0, set[tuple[str, str]]()
    for row in rows:
        change = _change(row, regions)
        if change.time_s < last_s:
            raise InputError(f"{row.where}: time goes back to {change.time_s:g} s")
        if change.time_s > last_s:
            last_s, now = change.time_s, set()
        if (change.src, change.dst) in now:
            raise InputError(f"{row.where}: {change.src} to {change.dst} stands there twice at {change.time_s:g} s")
        now.add((change.src, change.dst))
        yield change


def _setting(line: str) -> tuple[str, str]:
    key, _, value = line.lstrip("# ").partition(":")
    return key.strip(), value.strip()


def _period(settings: dict[str, str], last_s: float, path: Path) -> float | None:
    end = settings.get("end", "hold")
    if end not in ENDS:
        raise InputError(f"{path}: end is '{end}'{nearest(end, ENDS)}")
    if end == "hold":
        return None
    period_s = reading.number(settings.get("period_s"), f"{path}: period_s")
    if period_s <= last_s:
        raise InputError(f"{path}: period_s is {period_s:g}; it must be later than the last row's {last_s:g} s")
    return period_s


def _change(row: Row, regions: tuple[str, ...]) -> Change:
    time_s, rate = row.number("time_s"), row.number("goodput_mbit")
    src, dst = row.text("src_region"), row.text("dst_region")
    for region in (src, dst):
        if region not in regions:
            raise InputError(f"{row.where}: no region '{region}' in this run{nearest(region, regions)}")
    if src == dst:
        raise InputError(f"{row.where}: a link from {src} to itself")
    if time_s < 0 or rate <= 0:
        raise InputError(f"{row.where}: time_s is {time_s:g} and goodput_mbit {rate:g}; one is negative or not above 0")
    return Change(time_s, src, dst, reading.rate(rate, f"{row.where}: goodput_mbit"))
