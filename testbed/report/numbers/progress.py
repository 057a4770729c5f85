"""How much of a run, or of a series, is done, and how to go on with the rest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from testbed.errors import InputError
from testbed.files import typed_path
from testbed.record import series
from testbed.record.info import FILE_NAME, ResultInfo, read_info


def of_run(folder: Path, systems: Iterable[str], seeds: Iterable[int]) -> str:
    """ "3 of 9 over; resume with testbed run --resume results/..."; "" where all are, or there is nothing to do.

    Parameters
    ----------
    folder : of the run
    systems, seeds : that the run is to play
    """
    return _said(to_resume(folder), *counts(folder, systems, seeds))


def of_series(folder: Path) -> str:
    """The same of the series in `folder`: systems and seeds of all its runs."""
    done = wanted = 0
    for label, experiment in series.read(folder).points.items():
        counted = counts(folder / label, experiment["systems"], experiment["run"]["seeds"])
        done, wanted = done + counted[0], wanted + counted[1]
    return _said(folder, done, wanted)


def counts(folder: Path, systems: Iterable[str], seeds: Iterable[int]) -> tuple[int, int]:
    """How many of a run's systems and seeds are done, and how many there are to be."""
    names, places = {f"seed-{seed}" for seed in seeds}, [folder / system for system in set(systems)]
    there = [play for place in places if place.is_dir() for play in place.iterdir() if play.name in names]
    return sum(map(_is_done, there)), len(places) * len(names)


def _is_done(play: Path) -> bool:
    if not (play / FILE_NAME).is_file():
        return False
    try:
        return read_info(play, ResultInfo).nothing_left
    except InputError:  # damaged; its record is told about elsewhere
        return False


def _said(folder: Path, done: int, wanted: int) -> str:
    if done >= wanted:
        return ""
    return f"{done} of {wanted} over; resume with testbed run --resume {typed_path(folder)}"


def to_resume(run: Path) -> Path:
    """What is resumed to go on with the run in a folder: of one of a series, the series."""
    return run.parent if series.is_series(run.parent) else run
