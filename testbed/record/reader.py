"""Reads the records of a run, also those of a run that was killed or is still going on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from pathlib import Path

import pandas as pd

from testbed.errors import InputError
from testbed.record import frames, lines
from testbed.record.events import RunEnded
from testbed.record.info import DIVERGED, NOT_FINITE, ResultInfo, RunInfo, read_info
from testbed.record.info import FILE_NAME as INFO_NAME
from testbed.record.place import no_run

MOST_PLAYS = 10_000  # systems and seeds that are looked for; more are no run's, but damage


@dataclass
class Result:
    """One system and seed.

    Attributes
    ----------
    status : "finished", "ended" (with its trace), "interrupted", "failed", "diverged" (failed, as it would again), or
        "partial" (no word about its end: killed, or still running)
    missing : what the record lacks, one sentence each

    The frames are described, with their units, in `testbed.record.frames`.
    """

    system: str
    seed: int
    folder: Path
    info: ResultInfo
    status: str
    missing: list[str] = field(default_factory=list)

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self.frame("steps")

    @cached_property
    def links(self) -> pd.DataFrame:
        return self.frame("links")

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        return self.frame("evaluations")

    @property
    def tests(self) -> pd.DataFrame:
        """Of `evaluations`, those at checkpoints, of the model that is reported, and at the end, of all."""
        return self.evaluations[~self.evaluations["probe"]]

    @property
    def probes(self) -> pd.DataFrame:
        """Of `evaluations`, those of the model that is reported, made as the run went on; targets are judged by it."""
        return self.evaluations[self.evaluations["probe"]]

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every event that is in none of the other frames (exchanges, thresholds, guards, checkpoints, ...)."""
        path = self.folder / lines.FILE_NAME
        if not path.exists():
            return pd.DataFrame(columns=["event", "time_s", "node"])
        found, unreadable = frames.other_events(path)
        if self._parsed is None:  # which has counted them
            self._note_unreadable(unreadable)
        return found

    @cached_property
    def link_bytes(self) -> dict[str, int]:
        """Bytes on the wire of each directed link over the whole run."""
        totals = frames.link_totals(self.folder) if self._parsed is None else None
        return frames.bytes_until(self.links, math.inf) if totals is None else totals

    def link_bytes_until(self, time_s: float, links: Sequence[str]) -> dict[str, int]:
        """Bytes on the wire of some directed links up to `time_s` on the run's clock."""
        totals = frames.link_bytes_until(self.folder, links, time_s) if self._parsed is None else None
        if totals is None:
            every = self.frame("links")
            totals = frames.bytes_until(every[every["link"].isin(links)], time_s)
        return totals

    def frame(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """One of "steps", "links", "evaluations", or some of its columns, read anew: a hundred results fit no memory.

        The properties of these names keep what they have read.
        """
        if self._parsed is not None:
            whole = getattr(self._parsed, name)
            return whole if columns is None else whole[columns]
        if name in self._faults:
            return frames.empty(name) if columns is None else frames.empty(name).reindex(columns=columns)
        return frames.read(self.folder, name, columns)

    @cached_property
    def _faults(self) -> dict[str, str]:
        """Why Parquet files do not serve, by the name of the frame."""
        found = {name: frames.fault(self.folder, name, self.info.checksums) for name in frames.DTYPES}
        return {name: fault for name, fault in found.items() if fault}

    @cached_property
    def _parsed(self) -> frames.Frames | None:
        """The frames made from the events, where the Parquet files do not serve."""
        if not self._faults:
            return None
        files = ", ".join(f"{frames.file_name(name)} ({fault})" for name, fault in self._faults.items())
        path = self.folder / lines.FILE_NAME
        if not path.exists():
            self.missing.append(f"{files} and {lines.FILE_NAME} do not serve: those numbers are not known")
            return None
        if self.info.checksums or self.status == "finished" or "damaged" in self._faults.values():
            self.missing.append(f"{files}: read from {lines.FILE_NAME} instead")
        parsed = frames.parse(path)
        self._note_unreadable(parsed.unreadable)
        return parsed

    def _note_unreadable(self, count: int) -> None:
        if count:
            self.missing.append(f"{count} damaged lines of {lines.FILE_NAME} were left out")


@dataclass
class Run:
    """A run: its facts, its results in the order of the experiment, and what the record of the run itself `lacks`."""

    folder: Path
    info: RunInfo
    results: list[Result]
    lacks: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What the record lacks, one sentence each, as far as it has been read."""
        of_results = (f"{each.system} seed {each.seed}: {note}" for each in self.results for note in each.missing)
        return [*self.lacks, *of_results]

    @property
    def name(self) -> str:
        """ "<target>/<run-id>", as under results/."""
        return f"{self.info.target}/{self.info.run_id}"


def load(path: str | Path) -> Run:
    """Read the run in the folder `path` (results/<target>/<run-id>).

    Raises
    ------
    InputError
        There is no run in that folder.
    """
    folder = Path(path).resolve()
    found = sorted(folder.glob("*/seed-*"))
    if not found and not (folder / INFO_NAME).is_file():
        raise InputError(no_run(Path(path)))
    missing: list[str] = []
    try:
        info = read_info(folder, RunInfo, on_damage=missing.append)
    except InputError as error:
        info = RunInfo()
        missing.append(f"the facts of the run are not known: {error}")
    if not (info.target or info.experiment or info.systems or missing):
        missing.append(f"{folder / INFO_NAME}: it says nothing of a run")
    info.target = info.target or folder.parent.name
    info.run_id = info.run_id or folder.name
    results = [_load_result(one) for one in found if one.name.removeprefix("seed-").isdigit()]
    place = {system: index for index, system in enumerate(info.systems)}
    results.sort(key=lambda r: (place.get(r.system, len(place)), r.system, r.seed))
    there = {(result.system, result.seed) for result in results}
    missing += [
        f"not started: {system} seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        for system, seeds in _not_started(info, there).items()
    ]
    return Run(folder, info, results, missing)


def _not_started(info: RunInfo, there: set[tuple[str, int]]) -> dict[str, list[str]]:
    """By system the seeds that are to be played and have no record."""
    found: dict[str, list[str]] = {}
    for system, seed in islice(product(info.systems, info.seeds), MOST_PLAYS):
        if (system, seed) not in there:
            found.setdefault(system, []).append(str(seed))
    return found


def _load_result(folder: Path) -> Result:
    missing: list[str] = []
    try:
        info = read_info(folder, ResultInfo, on_damage=missing.append)
    except InputError as error:
        info = ResultInfo()
        missing.append(f"its options are not known: {error}")
    system, seed = folder.parent.name, int(folder.name.removeprefix("seed-"))
    if info.system and (info.system, info.seed) != (system, seed):
        missing.append(f"{folder / INFO_NAME}: it is of {info.system} seed {info.seed}")
    result = Result(system, seed, folder, info, _status(folder, info), missing)
    path = folder / lines.FILE_NAME
    if not path.exists():
        missing.append(f"{lines.FILE_NAME} is missing: single workers and events are not known")
    else:
        if lines.is_torn(path):
            missing.append(f"the last line of {lines.FILE_NAME} is cut off and was left out")
        if info.checksums and frames.lost_events(folder):
            missing.append(frames.LOST_EVENTS)
    if result.status in ("failed", DIVERGED) and info.error:
        missing.append(f"it failed: {info.error}")
    if result.status == "partial":
        missing.append("it did not end: killed, or still running")
    _ = result._parsed  # notes now, not at first use, what the Parquet files lack
    return result


def _status(folder: Path, info: ResultInfo) -> str:
    """How it ended: by its last event, or by its run.json where the events or their end are gone."""
    path = folder / lines.FILE_NAME
    if path.exists():
        last = lines.last_event(path)
        if isinstance(last, RunEnded):
            return DIVERGED if last.how == "failed" and last.error.endswith(NOT_FINITE) else last.how
        if not info.checksums:  # which stand there once it has ended
            return "partial"
    return DIVERGED if info.diverged else "partial" if info.status == "running" else info.status
