"""Reads the records of a run, also those of a run that was killed or is still going on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from testbed.errors import InputError, nearest
from testbed.record import frames, lines
from testbed.record.events import RunEnded
from testbed.record.info import FILE_NAME as INFO_NAME
from testbed.record.info import ResultInfo, RunInfo, read_info


@dataclass
class Result:
    """One system and seed.

    Attributes
    ----------
    status : "finished", "ended" (with its trace), "interrupted", "failed", or "partial" (no word about its end: killed,
        or still running)
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
        """Of `evaluations`, those of all models at checkpoints."""
        return self.evaluations[~self.evaluations["probe"]]

    @property
    def probes(self) -> pd.DataFrame:
        """Of `evaluations`, those of the model that is reported, made as the run went on; targets are judged by it."""
        return self.evaluations[self.evaluations["probe"]]

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every event that is in none of the other frames (exchanges, thresholds, guards, checkpoints, ...)."""
        path = self.folder / lines.FILE_NAME
        return frames.other_events(path) if path.exists() else pd.DataFrame(columns=["event", "time_s", "node"])

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
        frame = frames.read(self.folder, name, columns)
        if frame is None:
            frame = frames.empty(name)
        return frame if columns is None else frame[columns]

    @cached_property
    def _parsed(self) -> frames.Frames | None:
        """The frames made from the events, where the Parquet files do not serve."""
        lacking = [name for name in frames.DTYPES if frames.read(self.folder, name, columns=[]) is None]
        if not lacking:
            return None
        files = ", ".join(f"{name}.parquet" for name in lacking)
        path = self.folder / lines.FILE_NAME
        if not path.exists():
            self.missing.append(f"{files} and {lines.FILE_NAME} are missing: those numbers are not known")
            return None
        if self.status == "finished":  # any other record has them only where the run was stopped in good order
            self.missing.append(f"{files} missing or out of date: read from {lines.FILE_NAME}")
        parsed = frames.parse(path)
        if parsed.unreadable:
            self.missing.append(f"{parsed.unreadable} damaged lines of {lines.FILE_NAME} were left out")
        return parsed


@dataclass
class Run:
    """A run: its facts, its results in the order of the experiment, and what its record lacks."""

    folder: Path
    info: RunInfo
    results: list[Result]
    missing: list[str] = field(default_factory=list)

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
        raise InputError(_no_run(Path(path)))
    missing: list[str] = []
    try:
        info = read_info(folder, RunInfo)
    except InputError as error:
        info = RunInfo()
        missing.append(f"the facts of the run are not known: {error}")
    info.target = info.target or folder.parent.name
    info.run_id = info.run_id or folder.name
    results = [_load_result(one) for one in found if one.name.removeprefix("seed-").isdigit()]
    place = {system: index for index, system in enumerate(info.systems)}
    results.sort(key=lambda r: (place.get(r.system, len(place)), r.system, r.seed))
    there = {(result.system, result.seed) for result in results}
    missing += [
        f"{system} seed {seed}: not started"
        for system in info.systems
        for seed in info.seeds
        if (system, seed) not in there
    ]
    missing += [f"{result.system} seed {result.seed}: {note}" for result in results for note in result.missing]
    return Run(folder, info, results, missing)


def _load_result(folder: Path) -> Result:
    missing: list[str] = []
    try:
        info = read_info(folder, ResultInfo)
    except InputError as error:
        info = ResultInfo()
        missing.append(f"its options are not known: {error}")
    system, seed = folder.parent.name, int(folder.name.removeprefix("seed-"))
    result = Result(system, seed, folder, info, _status(folder, info), missing)
    path = folder / lines.FILE_NAME
    if not path.exists():
        missing.append(f"{lines.FILE_NAME} is missing: single workers and events are not known")
    elif lines.is_torn(path):
        missing.append(f"the last line of {lines.FILE_NAME} is cut off and was left out")
    if result.status == "failed" and info.error:
        missing.append(f"it failed: {info.error}")
    if result.status == "partial":
        missing.append("it did not end: killed, or still running")
    _ = result._parsed  # notes now, not at first use, what the Parquet files lack
    return result


def _status(folder: Path, info: ResultInfo) -> str:
    """How it ended: by its last event, or by its run.json where the events are gone."""
    path = folder / lines.FILE_NAME
    if path.exists():
        last = lines.last_event(path)
        return last.how if isinstance(last, RunEnded) else "partial"
    return "partial" if info.status == "running" else info.status


def _no_run(path: Path) -> str:
    """What to say when `path` holds no run: point to one that is near."""
    if not path.exists():
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        return f"{path}: no such run" + (nearest(path.name, siblings) if siblings else "")
    runs = sorted(child.parent for child in path.glob(f"*/{INFO_NAME}"))
    if runs:
        return f"{path}: not a run, but it holds {len(runs)}; the last is {runs[-1]}"
    return f"{path}: no run here; give a folder results/<target>/<run-id>"
