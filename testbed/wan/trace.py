"""A trace: how capacity and delay of WAN links change over a run.

On disk a trace is CSV with the columns `time_s,src_region,dst_region,goodput_mbit`, which `rtt_ms` may follow,
ordered by time. An `rtt_ms` is what a profile's is, twice the pair's one-way delay; where the cell is empty the delay
stays. Before a pair's first row, and for pairs that never occur, the profile's figures hold.

Lines that begin with `#` before the header are comments, and of these `# end: hold | loop | end` says what follows
the last row. `hold` (the default): it stays so. `loop`: the trace begins again `period_s` after its start
(`# period_s: 60`). `end`: the run of each system ends `end_s` after its start (`# end_s: 60`), wherever it is.
`# profile: NAME` names the profile that the trace was made for: a run on some of its regions takes the rows of those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from testbed import shipped
from testbed.errors import InputError, nearest
from testbed.wan import profile as profiles
from testbed.wan import reading
from testbed.wan.profile import Pair
from testbed.wan.reading import Row

FOLDER = "topologies/traces"
SUFFIX = ".csv"
COLUMNS = ("time_s", "src_region", "dst_region", "goodput_mbit")
RTT_COLUMN = "rtt_ms"
ENDS = {"hold": "", "loop": "period_s", "end": "end_s"}  # with the setting that says when
SETTINGS = ("end", "profile", *filter(None, ENDS.values()))  # what a comment may set
LEAST_S, LONGEST_S = 1e-3, 1e8  # of a loop, or of all: a millisecond, three years
LATE_S = 0.05  # a change that comes later than this after its time is counted as late
HINT = "a trace is a CSV file, see topologies/traces/"


@dataclass(frozen=True)
class Change:
    """From `time_s` on the run's clock, the link from `src` to `dst` has this goodput, and RTT unless it is None.

    Where `cut` is not None, which only faults set, it says that the link loses all it is given, or no longer does.
    """

    time_s: float
    src: str
    dst: str
    goodput_mbit: float
    rtt_ms: float | None = None
    cut: bool | None = None

    @property
    def pair(self) -> Pair:
        return self.src, self.dst

    @property
    def link(self) -> str:
        """As the records name it."""
        return f"{self.src}>{self.dst}"

    @property
    def delay_s(self) -> float | None:
        """The new one-way delay in seconds: half the round trip."""
        return None if self.rtt_ms is None else self.rtt_ms / 2e3


@dataclass(frozen=True)
class Trace:
    """Changes in order of time; `period_s` is set where the trace loops, `end_s` where the run ends with it.

    `profile` is the one it was made for, "" where that is not known.
    """

    name: str
    changes: tuple[Change, ...]
    period_s: float | None = None
    profile: str = ""
    end_s: float | None = None

    @property
    def then(self) -> str:
        """What follows the last change, in words."""
        if self.period_s is not None:
            return f"it loops every {self.period_s:g} s"
        return "it holds" if self.end_s is None else f"the run ends at {self.end_s:g} s"

    def after(self, clock_s: float) -> Iterator[Change]:
        """The changes later than `clock_s`, in order, without end where the trace loops."""
        lap = 0 if self.period_s is None else max(0, math.floor(clock_s / self.period_s))
        while True:
            shift_s = lap * (self.period_s or 0.0)
            for change in self.changes:
                if change.time_s + shift_s > clock_s:
                    yield replace(change, time_s=change.time_s + shift_s)
            if self.period_s is None:
                return
            lap += 1

    def at(self, clock_s: float) -> dict[Pair, Change]:
        """What is in force at `clock_s` for every pair that the trace has changed by then, its last RTT included."""
        looped = self.period_s is not None and clock_s >= self.period_s
        into_s = math.fmod(clock_s, self.period_s) if looped and self.period_s else clock_s
        so_far = [change for change in self.changes if change.time_s <= into_s]
        found: dict[Pair, Change] = {}
        for change in [*self.changes, *so_far] if looped else so_far:
            before = found.get(change.pair)
            if before is not None and change.rtt_ms is None:
                change = replace(change, rtt_ms=before.rtt_ms)
            found[change.pair] = change
        return found


def find(name: str) -> Path:
    """The file of the trace called `name` in `topologies/traces/`, or that file's path.

    Raises
    ------
    InputError
        No trace has that name.
    """
    path = Path(name)
    elsewhere = "/" in name and path.parent != Path(FOLDER)  # what is not there is then no other's file of that name
    if elsewhere or shipped.is_file(path):
        return path
    stem = path.name.removesuffix(SUFFIX)
    found = shipped.find(FOLDER, stem + SUFFIX)
    if found is None:
        known = shipped.names(FOLDER, SUFFIX)
        raise InputError(
            f"no trace '{name}'{nearest(stem, known)}; or give the path of a CSV file, e.g. ./{stem}{SUFFIX}"
        )
    return found


def about(path: Path) -> tuple[str, tuple[str, ...]]:
    """What the file says of itself above its header, settings left out; and every region that occurs in it.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    table = reading.read_table(path, HINT)
    said = " ".join(line.lstrip("# ") for line in table.comments if _key_value(line)[0] not in SETTINGS)
    cells = (row.cells.get(column, "").strip() for row in table.rows for column in COLUMNS[1:3])
    return said, tuple(dict.fromkeys(filter(None, cells)))


def load(path: Path, regions: tuple[str, ...]) -> Trace:
    """Read the part of a trace whose pairs lie in `regions`.

    Raises
    ------
    InputError
        The file cannot be read or something in it cannot be: names file and line. A region outside `regions` is an
        error unless the trace names a profile that has it.
    """
    table = reading.read_table(path, HINT)
    settings = _settings(table.comments, path)
    if table.columns not in (COLUMNS, (*COLUMNS, RTT_COLUMN)):
        raise InputError(f"{table.where}: columns must be {','.join(COLUMNS)}, and {RTT_COLUMN} may follow")
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
    end, when_s = _end(settings, changes[-1].time_s, path)
    mine = tuple(change for change in changes if change.src in regions and change.dst in regions)
    if not mine:
        raise InputError(f"{path}: no pair of this run's regions in it; they are {', '.join(regions)}")
    return Trace(path.stem, mine, when_s if end == "loop" else None, profile, end_s=when_s if end == "end" else None)


def _changes(rows: Iterator[Row], regions: tuple[str, ...]) -> Iterator[Change]:
    """The rows' changes; time must not go back, and a pair not stand twice at one time."""
    last_s, now = 0.0, set[Pair]()
    for row in rows:
        change = _change(row, regions)
        if change.time_s < last_s:
            raise InputError(f"{row.where}: time goes back to {change.time_s:g} s")
        if change.time_s > last_s:
            last_s, now = change.time_s, set()
        if change.pair in now:
            raise InputError(f"{row.where}: {change.src} to {change.dst} stands there twice at {change.time_s:g} s")
        now.add(change.pair)
        yield change


def _settings(comments: Iterable[str], path: Path) -> dict[str, str]:
    """What comment lines like `# end: loop` say; any other is for people."""
    found: dict[str, str] = {}
    for line in comments:
        key, value = _key_value(line)
        if key in SETTINGS and key in found:
            raise InputError(f"{path}: {key} stands there twice")
        found[key] = value
    return found


def _key_value(line: str) -> tuple[str, str]:
    key, _, value = line.lstrip("# ").partition(":")
    return key.strip(), value.strip()


def _end(settings: dict[str, str], last_s: float, path: Path) -> tuple[str, float | None]:
    """What follows the last row, and when."""
    end = settings.get("end", "hold")
    if end not in ENDS:
        raise InputError(f"{path}: end is '{end}'{nearest(end, ENDS)}")
    key = ENDS[end]
    for other, its_key in ENDS.items():
        if its_key in settings and its_key != key:
            raise InputError(f"{path}: {its_key} means nothing with end '{end}'; it goes with '# end: {other}'")
    if not key:
        return end, None
    when_s = reading.number(settings.get(key), f"{path}: {key}")
    if when_s <= last_s:
        raise InputError(f"{path}: {key} is {when_s:g}; it must be later than the last row's {last_s:g} s")
    if not LEAST_S <= when_s <= LONGEST_S:
        raise InputError(f"{path}: {key} is {when_s:g}; it must be from {LEAST_S:g} to {LONGEST_S:g} s")
    return end, when_s


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
    if time_s > LONGEST_S:
        raise InputError(f"{row.where}: time_s is {time_s:g}; above {LONGEST_S:g} the unit must be wrong")
    rtt_ms = None
    if row.cells.get(RTT_COLUMN, "").strip():
        rtt_ms = reading.rtt(row.number(RTT_COLUMN), f"{row.where}: {RTT_COLUMN}")
    return Change(time_s, src, dst, reading.rate(rate, f"{row.where}: goodput_mbit"), rtt_ms)
