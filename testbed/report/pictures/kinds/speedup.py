"""Speedup over the baseline."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target
from testbed.report.numbers.summary import BASELINE, aggregate
from testbed.report.numbers.wording import is_missing, times
from testbed.report.papers.stated import fitting
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK


@picture("speedup", order=2)
def speedup(run: Run, frame: pd.DataFrame) -> Figure | None:
    """How many times sooner than the baseline each system reached the target.

    With interval, the paper's number beside it (WeightGrad, figure 5d).
    """
    together = aggregate(frame)
    if not together["speedup_vs_baseline"].notna().any():
        return None
    systems = list(together["system"])
    stated = {
        number.system: number.value
        for number in fitting(run.info)
        if number.quantity == "speedup" and number.versus == BASELINE and number.system in systems
    }
    figure = parts.sheet(0.75 + 0.2 * len(systems) + (0.15 if stated else 0.0), [run])
    axes = figure.subplots()
    largest = _speedup_bars(axes, together, stated)
    axes.axvline(1.0, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
    known = together["speedup_vs_baseline"].dropna()
    if largest / known.min() > parts.LOG_BAR_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(parts.PLAIN)
        axes.set_xlim(known.min() / 2, largest * 3)
    else:
        axes.set_xlim(0, largest * 1.22)
    parts.bar_labels(axes, [look(system).label for system in systems])
    axes.set_title(f"Speedup to {Target.of(run.info)}")
    axes.set_xlabel("times as fast as the baseline")
    if stated:
        mark = Line2D([], [], ls="", marker="D", mfc="white", mec=INK.text, mew=0.9, label="in the paper")
        parts.legend(figure, [mark])
    return figure


def _speedup_bars(axes: Axes, together: pd.DataFrame, stated: dict[str, float]) -> float:
    """Draw bars, intervals and the papers' marks; returns the longest of them."""
    largest = 1.0
    for place, row in enumerate(together.to_dict("records")):
        value, missing = row["speedup_vs_baseline"], is_missing(row["speedup_vs_baseline"])
        tip = 0.0 if missing else value
        axes.barh(place, tip, height=0.62, color=look(row["system"]).color, zorder=2)
        if not is_missing(row["speedup_vs_baseline_high"]):
            low, high = max(row["speedup_vs_baseline_low"], 0.0), row["speedup_vs_baseline_high"]
            axes.plot([low, high], [place, place], color=INK.text, lw=1.0, zorder=3)
            tip = max(tip, high)
        if row["system"] in stated:
            paper = stated[row["system"]]
            axes.plot(paper, place, "D", mfc="white", mec=INK.text, mew=0.9, ms=4.2, zorder=4)
            tip = max(tip, paper)
        words = times(value) if not missing else parts.unrelated(row)
        ink: dict[str, Any] = {"color": INK.muted, "fontstyle": "italic"} if missing else {"color": INK.text}
        at = 1.0 if missing else tip  # right of the line at 1
        parts.beside(axes, words, (at, place), **ink)
        largest = max(largest, tip)
    return largest
