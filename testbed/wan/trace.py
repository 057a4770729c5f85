"""A bandwidth trace: how the capacity of WAN links changes over a run.

On disk a trace is CSV with the columns `time_s,src_region,dst_region,goodput_mbit`, ordered by time; lines that
begin with `#` before the header are comments, and of these `# end: hold | loop` says what follows the last row
(default: hold). With `loop` the trace begins again `period_s` (`# period_s: 60`) after its start. Before a pair's
first row, and for pairs that never occur, the profile's rate holds.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError, nearest

TRACES = Path(__file__).resolve().parents[2] / "topologies" / "traces"
COLUMNS = ("time_s", "src_region", "dst_region", "goodput_mbit")
ENDS = ("hold", "loop")


@dataclass(frozen=True)
class Change:
    """From `time_s` on the run's clock, the link from `src` to `dst` has a goodput of `goodput_mbit`."""

    time_s: float
    src: str
    dst: str
    goodput_mbit: float


@dataclass(frozen=True)
class Trace:
    """Changes in order of time; `period_s` is set where the trace loops."""

    name: str
    changes: tuple[Change, ...]
    period_s: float | None = None

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
    """Read a trace whose pairs lie in `regions`.

    Raises
    ------
    InputError
        The file cannot be read or something in it cannot be: names file and line.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path}: {reason}; a trace is a CSV file, see topologies/traces/") from None
    heads = 0
    while heads < len(lines) and lines[heads].startswith("#"):
        heads += 1
    settings = dict(_setting(line) for line in lines[:heads] if ":" in line)
    reader = csv.DictReader(lines[heads:])
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise InputError(f"{path}:{heads + 1}: columns must be {','.join(COLUMNS)}")
    changes: list[Change] = []
    for row in reader:
        change = _change(row, regions, f"{path}:{heads + reader.line_num}")
        if changes and change.time_s < changes[-1].time_s:
            raise InputError(f"{path}:{heads + reader.line_num}: time goes back to {change.time_s:g} s")
        changes.append(change)
    if not changes:
        raise InputError(f"{path}: no changes in it")
    return Trace(path.stem, tuple(changes), _period(settings, changes[-1].time_s, path))


def _setting(line: str) -> tuple[str, str]:
    key, _, value = line.lstrip("# ").partition(":")
    return key.strip(), value.strip()


def _period(settings: dict[str, str], last_s: float, path: Path) -> float | None:
    end = settings.get("end", "hold")
    if end not in ENDS:
        raise InputError(f"{path}: end is '{end}'{nearest(end, ENDS)}")
    if end == "hold":
        return None
    period_s = _number(settings.get("period_s"), f"{path}: period_s")
    if period_s <= last_s:
        raise InputError(f"{path}: period_s is {period_s:g}; it must be later than the last row's {last_s:g} s")
    return period_s


def _change(row: dict[str, str | None], regions: tuple[str, ...], where: str) -> Change:
    time_s = _number(row["time_s"], f"{where}: time_s")
    rate = _number(row["goodput_mbit"], f"{where}: goodput_mbit")
    src, dst = row["src_region"] or "", row["dst_region"] or ""
    for region in (src, dst):
        if region not in regions:
            raise InputError(f"{where}: no region '{region}' in this run{nearest(region, regions)}")
    if src == dst:
        raise InputError(f"{where}: a link from {src} to itself")
    if time_s < 0 or rate <= 0:
        raise InputError(f"{where}: time_s is {time_s:g} and goodput_mbit {rate:g}; one is negative or not above 0")
    return Change(time_s, src, dst, rate)


def _number(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where} is '{text or ''}'; it must be a number")
    return value
