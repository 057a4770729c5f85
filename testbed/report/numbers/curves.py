"""Lines that plots draw: of which seeds, and a system's training loss over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.record.info import OVER
from testbed.record.reader import Result, Run
from testbed.report.numbers.asked import Target, timing_only
from testbed.report.numbers.interval import half_width
from testbed.report.numbers.reached import running_mean, smoothed

POINTS = 1500  # of a line; more cannot be told apart


@dataclass(frozen=True)
class Curve:
    """A system's training loss over the steps that all its seeds have done (those that are over, where any is).

    All arrays are of shape (steps,). `half` is half the 95 % interval over the `seeds`, NaN for one seed.
    """

    system: str
    seeds: int
    step: np.ndarray
    time_s: np.ndarray
    raw: np.ndarray
    smooth: np.ndarray
    half: np.ndarray


def curves_of(run: Run) -> list[Curve]:
    """The curve of each system of `run` that has a step, in the order of the experiment.

    What is smooth is what the target is judged by: the loss of the model that is reported where it was tested as the
    run went on, else the running mean of the workers'. So one seed's line crosses the target where the table says it
    did; the mean of several crosses it somewhere near the mean of their times.
    """
    curves: list[Curve] = []
    if timing_only(run.info):
        return curves
    window = Target.of(run.info).window
    for system in dict.fromkeys(result.system for result in run.results):
        results = results_of(run, system)
        seeds = [r.steps for r in results]
        if not seeds:
            continue
        length = min(map(len, seeds))
        raw = np.stack([steps["loss"].to_numpy()[:length] for steps in seeds])
        time_s = np.stack([steps["time_s"].to_numpy()[:length] for steps in seeds])
        smooth = np.stack([_smooth(r, one, length, window) for r, one in zip(results, raw, strict=True)])
        columns = (time_s.mean(0), raw.mean(0), smooth.mean(0), half_width(smooth))
        step = seeds[0]["step"].to_numpy()[:length] + 1
        curves.append(Curve(system, len(seeds), *(thinned(column) for column in (step, *columns))))
    return curves


def results_of(run: Run, system: str) -> list[Result]:
    """The seeds of a system that its lines are of: those that are over; where none is, those that have a step.

    A line of all would end where the shortest of them does, which may have been stopped.
    """
    begun = [r for r in run.results if r.system == system and len(r.steps)]
    return [r for r in begun if r.status in OVER] or begun


def _smooth(result: Result, raw: np.ndarray, length: int, window: int) -> np.ndarray:
    """The smooth loss after each of the first `length` steps."""
    probes = result.probes
    if not len(probes):
        return running_mean(raw, min(window, length))
    steps, losses = (probes[name].to_numpy(dtype="float64") for name in ("step", "train_loss"))
    middles, means = smoothed(steps, losses, window, to_the_end=True)
    return np.interp(np.arange(1, length + 1), middles, means)


def thinned(column: np.ndarray) -> np.ndarray:
    """At most about POINTS of the values, evenly spaced, the last among them."""
    stride = -(-len(column) // POINTS)
    return column[::-1][::stride][::-1]
