"""A series of runs that differ in the keys of `[sweep]`: played one after the other, reported on together.

A series is a folder with `series.json` and, for each point, an ordinary run in a folder named after it. Whatever
ends it, each run that has begun keeps its records, and the series goes on from there. A system that nothing swept
concerns is played once, where it would repeat to the bit; the other runs get a copy of its records.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from testbed.errors import RunError, TestbedError
from testbed.experiment.load import Point, from_dict
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import FABRICS
from testbed.harness import checkpoint, session
from testbed.harness.lock import held
from testbed.harness.not_finite import Diverged
from testbed.harness.pool import HERE, Elsewhere, Errand
from testbed.record.info import FILE_NAME as RUN_FILE
from testbed.record.info import ResultInfo, RunInfo, read_info, write_facts
from testbed.record.series import FILE_NAME, SeriesInfo, read
from testbed.roles.compute import MEASURED

Report = Callable[[Path, Callable[[], None]], None]
"""Plays the run in a folder by calling what it is given, and reports on it."""


def begin(points: Sequence[Point], request: session.Request, folder: Path) -> Path:
    """Write down a series in its folder, which is made where it is missing; `play` does the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    device = FABRICS.find(request.fabric).device
    experiments = {point.label: point.experiment.on(device).as_dict() for point in points}
    stored = SeriesInfo(
        request.target,
        request.fabric,
        request.device,
        request.command,
        request.notes,
        experiments,
        request.tensorboard,
        {point.label: point.place for point in points},
    )
    write_facts(folder / FILE_NAME, stored)
    return folder


def play(folder: Path, jobs: int | None, report: Report, elsewhere: Elsewhere = HERE) -> None:
    """Play what is still to be played; `report` plays one run, given its folder and what does it, and reports on it.

    A cluster that was joined may play all runs of the series at once, `elsewhere`, before the first report. Raises what
    the first run fails with; where training has diverged, Diverged once all is played.
    """
    stored = read(folder)
    experiments = {label: from_dict(data, str(folder / FILE_NAME)) for label, data in stored.points.items()}
    failure: TestbedError | None = None
    if elsewhere.run_all is not None:
        for label, experiment in experiments.items():
            _prepare(folder, stored, label, experiment)
        try:
            session.play_at_once(_plays(folder, stored), elsewhere.run_all, folder)
        except TestbedError as error:
            failure = error
    diverged: list[Path] = []
    for label, experiment in experiments.items():
        place = folder / label
        _prepare(folder, stored, label, experiment)
        with held(place):
            for system, first in _shared(stored, label).items():
                for seed in experiment.run.seeds:
                    _copy(folder / first / system / f"seed-{seed}", place / system / f"seed-{seed}")
            if failure is not None and session.plays(place, read_info(place, RunInfo)):
                report(place, partial(_fail, failure))
            try:
                report(place, session.ready(place, jobs, Elsewhere(renamed=elsewhere.renamed)))
            except Diverged as error:
                diverged += error.places
    if diverged:
        raise Diverged(folder.resolve(), diverged)


def _fail(failure: TestbedError) -> None:
    raise failure


def _prepare(folder: Path, stored: SeriesInfo, label: str, experiment: Experiment) -> None:
    """Make the folder of a run, where it is not there yet."""
    place = folder / label
    if (place / RUN_FILE).is_file():
        return
    shared = _shared(stored, label).items()
    notes = [f"{system} was played once, for {first}: nothing that was swept concerns it." for system, first in shared]
    request = session.Request(
        stored.target,
        stored.fabric,
        stored.device,
        folder=place,
        tensorboard=stored.tensorboard,
        command=stored.command,
        notes=(*stored.notes, *notes),
    )
    session.prepare(experiment, request)


def _plays(folder: Path, stored: SeriesInfo) -> list[Errand]:
    """All that is still to be played, each named after its run."""
    return [
        replace(each, label=f"{label}: {each.label}")
        for label in stored.points
        for each in session.plays(folder / label, read_info(folder / label, RunInfo))
        if each.folder.parent.name not in _shared(stored, label)
    ]


def _shared(stored: SeriesInfo, label: str) -> dict[str, str]:
    """The systems of a run that an earlier one has the same, each with that run's label."""
    data = stored.points[label]
    if not FABRICS.find(stored.fabric).virtual_time or data["compute"]["device"] == MEASURED:
        return {}  # times would differ, if only by chance
    found = {}
    for system in data["systems"]:
        concerning = _concerning(data, system)
        first = next(point for point, other in stored.points.items() if _concerning(other, system) == concerning)
        if first != label:
            found[system] = first
    return found


def _concerning(data: dict[str, Any], system: str) -> dict[str, Any]:
    """An experiment with this system alone."""
    return {**data, "systems": {system: data["systems"].get(system)}}


def _copy(source: Path, place: Path) -> None:
    """Whole or not at all: half a copy would be taken for a run to resume."""
    if place.exists():
        return
    if checkpoint.ended(source) is None:
        raise RunError(f"{source}: is {read_info(source, ResultInfo).status}, and cannot stand for {place}")
    half = place.with_name(f".{place.name}")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half)
    half.rename(place)
