"""Loss of one system in runs with more and fewer workers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target, experiment_of
from testbed.report.numbers.curves import curves_of
from testbed.report.pictures import parts
from testbed.report.pictures.kinds.loss import losses
from testbed.report.pictures.registry import picture

PREFERRED = "weightgrad"  # is drawn where all runs have it; else the last system that all have
SEQUENCE = ("#9ecae1", "#4292c6", "#08519c", "#08306b")  # few to many workers, light to dark


@picture("workers", of_several=True)
def workers(runs: Sequence[Run], frame: pd.DataFrame) -> Figure | None:
    """Training loss of a system that all runs have, with more and fewer workers, against steps and time.

    WeightGrad, figure 4.
    """
    shared = [s for s in dict.fromkeys(frame["system"]) if all(s in {r.system for r in run.results} for run in runs)]
    if len(runs) < 2 or not shared:
        return None
    system = PREFERRED if PREFERRED in shared else shared[-1]
    ordered = sorted(runs, key=_count)
    curves = [next((c for c in curves_of(run) if c.system == system), None) for run in ordered]
    there = [(run, curve) for run, curve in zip(ordered, curves, strict=True) if curve is not None]
    if not there:
        return None
    figure = parts.sheet(3.7, runs)
    by_step, by_time = figure.subplots(2, 1)
    markers = itertools.cycle("osD^v")
    strokes: list[dict[str, Any]] = [
        {"color": SEQUENCE[min(place, len(SEQUENCE) - 1)], "marker": next(markers), "label": _words(one)}
        for place, (one, _) in enumerate(there)
    ]
    losses(by_step, by_time, [curve for _, curve in there], strokes, Target.of(ordered[0].info), frame)
    by_step.set_title(f"{look(system).label}: loss by step, by workers")
    parts.legend(figure, [Line2D([], [], **style) for style in strokes])
    return figure


def _count(run: Run) -> int:
    topology = experiment_of(run.info).topology
    return len(topology.regions) * topology.workers_per_region


def _words(run: Run) -> str:
    topology = experiment_of(run.info).topology
    return f"{len(topology.regions)} × {topology.workers_per_region} workers" if _count(run) else run.name
