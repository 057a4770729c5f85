"""Progress of each system through a run's faults."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.record.reader import Run
from testbed.report.numbers.curves import thinned
from testbed.report.numbers.disturbed import Span, spans, steps_done_s
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK

COLORS = ("#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#8C8C8C", "#D55E00")  # of kinds of faults, in order of the first


@picture("faults", order=10)
def faults(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Steps done against time, faults as bands: a level line is a system that stands still.

    One line per system, of its first seed.
    """
    firsts = {result.system: result for result in reversed(run.results) if len(result.steps)}
    shown = [firsts[system] for system in dict.fromkeys(result.system for result in run.results) if system in firsts]
    met = max((spans(result) for result in shown), key=len, default=[])
    if not met:
        return None
    ends_s = [float(result.steps["time_s"].max()) for result in shown]
    unit, scale = parts.time_unit(max(ends_s))
    kinds = list(dict.fromkeys(span.kind for span in met))
    colors = dict(zip(kinds, (COLORS[k % len(COLORS)] for k in range(len(kinds))), strict=True))
    figure = parts.sheet(2.6, [run])
    axes = figure.subplots()
    bands(axes, met, colors, max(ends_s), scale)
    for place, result in enumerate(shown):
        done_s = steps_done_s(result)
        x, y = thinned(np.concatenate([[0.0], done_s])) / scale, thinned(np.arange(len(done_s) + 1))
        axes.plot(x, y, markevery=parts.marks(len(x), place), drawstyle="steps-post", **parts.stroke(result.system))
    axes.set_title("Steps done under faults")
    axes.set_xlabel(f"{clock(frame['fabric'])} ({unit})")
    axes.set_ylabel("steps done")
    axes.set_xlim(0, max(ends_s) / scale)
    axes.set_ylim(bottom=0)
    patches = [Patch(facecolor=color, alpha=0.3, label=kind) for kind, color in colors.items()]
    parts.legend(figure, [*parts.keys(result.system for result in shown), *patches])
    return figure


def bands(axes: Axes, met: list[Span], colors: dict[str, str], end_s: float, scale: float) -> None:
    """A band across the panel for each fault, in its kind's color."""
    for span in met:
        if span.begin_s < end_s:
            left, right = span.begin_s / scale, min(span.end_s, end_s) / scale
            axes.axvspan(left, right, color=colors[span.kind], alpha=0.25, lw=0, zorder=0)
            axes.axvline(left, color=INK.rule, lw=0.5, zorder=0)
