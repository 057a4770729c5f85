"""How much each system's speedup depends on the setting: one thing varied at a time, step times alone.

A first short run of all systems computes, on the virtual fabric with a modelled device, and records the sizes of
messages that depend on the data. Every setting is then the same run timing-only, with these sizes: on another network
they are what they would be, at another batch nearly. What is compared is the mean time of a step once `SETTLED` of the
run's steps are over; how many steps a target takes is another question, which the kept runs answer. The settings of one
axis are a series of its own in the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.errors import InputError
from testbed.experiment.load import Point, load
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import FABRICS, virtual
from testbed.files import write_whole
from testbed.harness import session, sweep
from testbed.harness.lock import held
from testbed.record import series
from testbed.record.info import FILE_NAME, RunInfo, read_info
from testbed.record.reader import load as load_run
from testbed.report.numbers.summary import BASELINE, ratio

SETTLED = 0.5  # of a run's steps come before those that are measured
LEAST_STEPS = 2  # with one before
TABLE = "sensitivity.csv"
COMPUTED = "computed"  # the folder of the run that computes
BATCH = "training.batch_size"


@dataclass(frozen=True)
class Axis:
    """One thing that is varied: the key of the experiment, the values it takes, and how it is called."""

    name: str
    key: str
    values: tuple[Any, ...]
    label: str


AXES = (
    Axis("lan", "topology.lan_mbit", (100.0, 300.0, 1e3, 3e3, 1e4, 1e5), "LAN goodput (Mbit/s)"),
    Axis("wan", "topology.wan_factor", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0), "WAN goodput (times the profile's)"),
    Axis("rtt", "topology.rtt_factor", (0.1, 0.3, 1.0, 3.0), "WAN round trip (times the profile's)"),
    Axis("device", "compute.device", ("m60", "v100", "a100", "h100"), "device"),
    Axis("batch", BATCH, (32, 64, 128, 256, 512), "batch"),
)


def short(experiment: Experiment, steps: int) -> dict[str, Any]:
    """The changes that make a short run of it, tested no more than must be."""
    return {
        "training.steps": steps,
        "run.checkpoint_steps": steps,
        "run.eval_images": 1,
        "run.probe_steps": 0,
        "run.seeds": experiment.run.seeds[:1],
        "run.fabric": virtual(),
    }


def points(experiment: Experiment, axis: Axis, steps: int, sizes: Path) -> list[Point]:
    """The runs of one axis, with the sizes of the run in `sizes`."""
    changes = {**short(experiment, steps), "compute.math": "none", "compute.sizes": str(sizes)}
    found = []
    for value in axis.values:
        (point,) = load(experiment, {**changes, axis.key: value})
        found.append(
            Point(f"{axis.name}={value:g}" if isinstance(value, float) else f"{axis.name}={value}", point.experiment)
        )
    return found


def on_virtual(experiment: Experiment) -> Experiment:
    """The experiment with the device that it has there."""
    return experiment.on(FABRICS[virtual()].device)


def fitting(experiment: Experiment, axes: Sequence[Axis], say: Callable[[str], None]) -> list[Axis]:
    """The axes without batches that the workers cannot share equally; says which.

    Raises
    ------
    InputError
        Nothing is left that could be varied.
    """
    fits = [_fitting(experiment, axis) for axis in axes]
    for axis, kept in zip(axes, fits, strict=True):
        if left_out := [str(value) for value in axis.values if value not in kept.values]:
            say(f"left out: {axis.label} {', '.join(left_out)}, which the workers cannot share equally")
    if not any(axis.values for axis in fits):
        raise InputError("--axes batch: the workers can share none of its batches equally; vary something else")
    return [axis for axis in fits if axis.values]


def _fitting(experiment: Experiment, axis: Axis) -> Axis:
    if axis.key != BATCH:
        return axis
    every = len(experiment.roles.workers) * experiment.compute.gpus
    return replace(axis, values=tuple(batch for batch in axis.values if batch % every == 0))


def play(experiment: Experiment, axes: Sequence[Axis], steps: int, folder: Path, jobs: int | None) -> pd.DataFrame:
    """Play what is still to be played of all axes in `folder`; returns the table (`measured`) and writes it there.

    Raises
    ------
    InputError
        The folder holds the runs of another experiment, there are too few steps, no baseline is played, or a run of
        an axis cannot be.
    Diverged
        Training did in the run that computes: what it recorded is not of as many steps.
    """
    if steps < LEAST_STEPS:
        raise InputError(f"--steps {steps}: the second half of a run's steps counts; give at least {LEAST_STEPS}")
    if BASELINE not in experiment.systems:
        raise InputError(f"--systems: speedups are over the {BASELINE}; name it, too")
    every = [points(experiment, axis, steps, folder / COMPUTED) for axis in axes]
    _compute(experiment, steps, folder / COMPUTED, jobs)
    for axis, asked in zip(axes, every, strict=True):
        place = folder / axis.name
        if series.is_series(place):
            stated = {point.label: on_virtual(point.experiment).as_dict() for point in asked}
            if series.read(place).points != stated:
                raise _another(place)
        else:
            request = session.Request(target=axis.name, fabric=virtual(), results=folder, command=("sensitivity",))
            sweep.begin(asked, request, folder=place)
        sweep.play(place, jobs, lambda run, play: play())
    frame = measured(folder, axes)
    write_whole(folder / TABLE, frame.to_csv(index=False, float_format="%.6g"))
    return frame


def _compute(experiment: Experiment, steps: int, folder: Path, jobs: int | None) -> None:
    """Play, or play on, the run that records sizes; raises as `play`."""
    (point,) = load(experiment, short(experiment, steps))
    it = point.experiment
    if (folder / FILE_NAME).is_file():
        facts = read_info(folder, RunInfo)
        if facts.experiment != on_virtual(it).on_data(not facts.data.stand_in).as_dict():
            raise _another(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        session.prepare(it, session.Request("sensitivity", virtual(), folder=folder, command=("sensitivity",)))
    with held(folder):
        session.ready(folder, jobs)()


def _another(folder: Path) -> InputError:
    return InputError(f"{folder}: holds runs of another experiment; name another folder with --out")


def measured(folder: Path, axes: Sequence[Axis]) -> pd.DataFrame:
    """Step times of what was played.

    Returns
    -------
    One row for each axis, value and system: `axis`, `value`, `system`, `step_s` (mean of the settled steps, seconds),
    `speedup` (the baseline's step_s in the same setting / this one's; NaN without one).

    Raises
    ------
    InputError
        A run is not there.
    """
    rows = []
    for axis in axes:
        stored = sweep.read(folder / axis.name)
        for value, label in zip(axis.values, stored.points, strict=True):
            for result in load_run(folder / axis.name / label).results:
                rows.append(
                    {"axis": axis.name, "value": value, "system": result.system, "step_s": _settled_s(result.steps)}
                )
    if not rows:
        raise InputError(f"{folder}: nothing was played")
    frame = pd.DataFrame(rows)
    return frame.assign(speedup=ratio(frame, "step_s", BASELINE, ("axis", "value")))


def _settled_s(steps: pd.DataFrame) -> float:
    """Mean time of the steps once the run has settled."""
    ends_s = steps["time_s"].to_numpy()
    first = int(len(ends_s) * SETTLED)
    return float((ends_s[-1] - ends_s[first - 1]) / (len(ends_s) - first))
