"""All systems in order of their speedup, each with its interval, and what its accuracy paid for it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target
from testbed.report.numbers.summary import BASELINE, aggregate
from testbed.report.numbers.wording import is_missing, times
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK, WIDE, Sheet

WIDTH, HEADING, ROW = 8.0, 0.95, 0.215  # inches
SHARES = (3, 2)  # of the width: speedups, accuracies
WORST = 12.0  # percentage points that a system may lose and still be drawn to scale, so that small differences show
PATCH = {"fc": "white", "ec": "none", "pad": 0.6}  # behind words on a line
SPEEDUP, ACCURACY = "speedup_vs_baseline", "accuracy_vs_baseline"


@picture("ranking", wide=True)
def ranking(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Systems in order of their speedup over the baseline, with intervals, and their accuracy against its.

    Both are paired by seed. Where an interval leaves out the dashed line, the difference is significant at 5 %.
    """
    together = aggregate(frame)
    if not together[SPEEDUP].notna().any():
        return None
    together = together.sort_values(SPEEDUP, ascending=False, na_position="last", ignore_index=True)
    figure = Sheet(WIDTH, HEADING + ROW * len(together), WIDE)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=SHARES)
    _points(left, together, SPEEDUP, 1.0)
    _points(right, together, ACCURACY, 100.0)
    parts.bar_labels(left, [look(system).label for system in together["system"]])
    for axes, same in ((left, 1.0), (right, 0.0)):
        axes.axvline(same, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
    left.set_xscale("log")
    left.xaxis.set_major_formatter(parts.PLAIN)
    known = together[[SPEEDUP, f"{SPEEDUP}_low", f"{SPEEDUP}_high"]].to_numpy(dtype="float64")
    left.set_xlim(np.nanmin(known) / 1.2, np.nanmax(known) * 2.2)  # with room for the last one's words
    left.set_title(f"Speedup to {Target.of(run.info)}")
    left.set_xlabel("times as fast as the baseline")
    right.set_title("Accuracy at the end")
    right.set_xlabel("points above the baseline, %")
    right.set_xlim(*_ends(together))
    if run.info.data.stand_in:
        figure.suptitle("STAND-IN DATA", fontsize=7, fontweight="bold", color=INK.warning, ha="right", x=0.99)
    return figure


def _ends(together: pd.DataFrame) -> tuple[float, float]:
    """Of the axis of accuracies, in percentage points."""
    known = 100 * together[[ACCURACY, f"{ACCURACY}_low", f"{ACCURACY}_high"]].to_numpy(dtype="float64")
    if np.isnan(known).all():
        return -1.0, 1.0
    return max(np.nanmin(known) - 0.5, -WORST), np.nanmax(known) + 0.5


def _points(axes: Axes, together: pd.DataFrame, metric: str, scale: float) -> None:
    """A point a system with its interval; in words where it has none."""
    for place, row in enumerate(together.to_dict("records")):
        value, low, high = (scale * row[f"{metric}{end}"] for end in ("", "_low", "_high"))
        if is_missing(value):
            parts.beside(axes, parts.unrelated(row), (1.0, place), color=INK.muted, fontstyle="italic")
            continue
        style = look(row["system"])
        if not is_missing(low):
            axes.plot([low, high], [place, place], color=style.color, lw=1.6, alpha=0.55, zorder=2)
        axes.plot(value, place, "o", color=style.color, ms=4.5, zorder=3)
        if metric == ACCURACY and value < -WORST:
            parts.beside(axes, f"◂ {value:.0f}", (-WORST, place), gap_points=2, color=style.color, bbox=PATCH)
        if metric == SPEEDUP and row["system"] != BASELINE:
            end = value if is_missing(high) else max(value, high)
            parts.beside(axes, times(value), (end, place), color=INK.text, bbox=PATCH)
