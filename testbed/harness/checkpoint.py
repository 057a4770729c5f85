"""Checkpoints of one system and seed: the states of all roles at a step boundary, whole or not at all.

`<system>/seed-<n>/checkpoint-<step>/` holds one file a role and `clock.json`. It is written under a temporary
name and renamed, then the one before it is deleted: there is always one to go on from.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from testbed.harness.lock import Held, held
from testbed.record import info, lines
from testbed.record.events import RunEnded
from testbed.record.info import ResultInfo, read_facts, write_facts

RUNS = ("*/*", "*/*/*")  # places of runs below a folder of results: by themselves, in a series
RUN_ID = re.compile(r"\d{8}-\d{6}(-.+)?")  # what folders of runs are called, also those of programs
PREFIX = "checkpoint-"
HALF = ".tmp"
CLOCK = "clock.json"


class Clock(msgspec.Struct, frozen=True):
    """Where the run stood: steps completed, and seconds on its clock (exactly: JSON keeps every bit)."""

    step: int
    clock_s: float


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path
    clock: Clock


def latest(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint in a system's and seed's folder.

    Raises
    ------
    InputError
        The clock of one is damaged.
    """
    clocks = [path / CLOCK for path in folder.glob(f"{PREFIX}*") if path.suffix != HALF]
    # One without a clock is half-deleted, as one under its temporary name is half-written: a killed run left it.
    found = [Checkpoint(path.parent, read_facts(path, Clock)) for path in clocks if path.is_file()]
    return max(found, key=lambda checkpoint: checkpoint.clock.step, default=None)


def is_finished(folder: Path) -> bool:
    """Whether nothing is left to do in a system's and seed's folder: it is played, has tables and no more a checkpoint.

    A damaged `run.json` is refused (InputError) rather than all played again.
    """
    found = ended(folder)
    return found is not None and bool(found.checksums) and latest(folder) is None


def ended(folder: Path) -> ResultInfo | None:
    """What is known of a system and seed that is played to its end, or diverged; None while something is left to play.

    Its `run.json` says so, or where it has none its events. Its tables may not be there: it was killed before them, or
    ended on a machine that only trains.
    """
    if (folder / info.FILE_NAME).is_file():
        found = info.read_info(folder, ResultInfo)
        return found if found.nothing_left else None
    events = folder / lines.FILE_NAME
    last = lines.last_event(events) if events.is_file() else None
    found = ResultInfo(status=last.how, error=last.error) if isinstance(last, RunEnded) else ResultInfo()
    return found if found.nothing_left else None


def write(folder: Path, clock: Clock, save: Callable[[Path], None], before_rename: Callable[[Path], None]) -> None:
    """Write a checkpoint: `save` fills it, `before_rename` is told its temporary folder when it is complete."""
    temporary = folder / f"{PREFIX}{clock.step}{HALF}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save(temporary)
        before_rename(temporary)
        write_facts(temporary / CLOCK, clock)
    except BaseException:  # of no use by halves, and on a full disk in the way
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    final = temporary.with_suffix("")
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for other in folder.glob(f"{PREFIX}*"):
        if other != final:
            shutil.rmtree(other)


def remove(folder: Path) -> None:
    """Delete all checkpoints: the system and seed is finished."""
    for path in folder.glob(f"{PREFIX}*"):
        shutil.rmtree(path)


def sweep(results: Path) -> tuple[list[Path], list[Path]]:
    """Delete half-written checkpoints and runs' empty folders under `results`, but not those of one that is going on.

    Returns
    -------
    What was deleted, and the runs that still go on and have such checkpoints.
    """
    swept, going_on = [], []
    halves = sorted(path for run in RUNS for path in results.glob(f"{run}/*/seed-*/{PREFIX}*{HALF}"))
    for run, paths in groupby(halves, key=lambda path: path.parents[2]):
        try:
            with held(run):
                for path in paths:
                    shutil.rmtree(path)
                    swept.append(path)
        except Held:
            going_on.append(run)
    for path in sorted(results.glob("*/*"), reverse=True):
        if RUN_ID.fullmatch(path.name) and path.is_dir() and not any(path.iterdir()):
            with suppress(OSError):  # a run has just begun there
                path.rmdir()
                swept.append(path)
    return swept, going_on
