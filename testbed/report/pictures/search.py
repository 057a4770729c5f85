"""The picture of `testbed tune`: what each trial of a system came to, by its learning rate."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from testbed.report.looks import look
from testbed.report.numbers.wording import number
from testbed.report.pictures import parts
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, settle

ACROSS = 5
WIDTH, HEIGHT, REST = 1.5, 1.15, 0.65  # inches of a panel, and of what stands around all of them
LEAST_S = 1e-3  # for an axis of logarithms: a model may be as good as asked before it is trained
NARROWEST = 3  # panels: their keys need as much
RING = 7.5  # points across
TITLE = 22  # letters that a panel is wide
LOWEST = 0.8  # of the shortest trial, where the axis begins


def draw(trials: pd.DataFrame, target: str) -> Sheet:
    """A panel for each system of a search (`testbed.harness.tune.frame`): times to the target, in words, by rate.

    What missed the target, or was stopped since it could not win any more, stands hollow at the height of its score,
    which grows with the time that it had and with what it missed by. What came to nothing, as when it diverged, or took
    over ten times as long as the best, is a cross at the upper edge.
    """
    systems = list(trials["system"].unique())
    across = min(ACROSS, len(systems))
    down = -(-len(systems) // across)
    with drawing(COLUMN):
        figure = Sheet(WIDTH * max(across, NARROWEST), HEIGHT * down + REST, COLUMN)
        panels = figure.subplots(down, across, squeeze=False, sharex=True)
        for axes, system in zip(panels.flat, systems, strict=False):
            _panel(axes, system, trials[trials["system"] == system])
        for axes in panels.flat[len(systems) :]:
            axes.set_axis_off()
        for axes in panels[-1]:
            axes.set_xlabel("learning rate", fontsize="small")
        figure.supylabel(f"time to {target} (s)", fontsize="small")
        parts.legend(figure, _keys(), len(_keys()))
        settle(figure)
    return figure


def _panel(axes: Axes, system: str, trials: pd.DataFrame) -> None:
    color = look(system).color
    best = trials.sort_values(["reached", "score"], ascending=[False, True], kind="stable").index[0]  # as `tune` takes
    trials = trials.assign(score=trials["score"].clip(lower=LEAST_S))
    for reached, some in trials.groupby("reached"):
        face = color if reached else "none"
        axes.scatter(some["rate"], some["score"], s=14, facecolors=face, edgecolors=color, linewidths=0.9, zorder=3)
    first = trials.iloc[0]
    axes.axvline(first["rate"], color=INK.muted, lw=0.7, ls=parts.DASHES, zorder=1)
    taken = (trials.loc[best, "rate"], trials.loc[best, "score"])
    axes.plot(*taken, "o", ms=RING, mfc="none", mec=INK.text, mew=0.7)
    near = trials["score"] < 10 * trials["score"].min()
    axes.set_ylim(LOWEST * trials["score"][near].min(), trials["score"][near].max() / LOWEST)
    lost: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": color, "clip_on": False}
    [marks] = axes.plot(trials["rate"][~near], np.ones((~near).sum()), "x", ms=4, **lost)
    marks.set_in_layout(False)  # beyond the scale that the axes have yet
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.yaxis.set_minor_formatter(lambda value, _: number(value))
    axes.tick_params(which="both", labelsize="x-small")
    axes.set_title(fill(look(system).label, TITLE), fontsize="small")


def _keys() -> list[Line2D]:
    dot: dict[str, Any] = {"ls": "", "marker": "o", "markersize": 4, "color": INK.text}
    return [
        Line2D([], [], **dot, label="reached it"),
        Line2D([], [], **dot, markerfacecolor="none", label="missed or stopped: its score"),
        Line2D([], [], ls="", marker="x", markersize=4, color=INK.text, label="nothing, or over tenfold"),
        Line2D([], [], ls="", marker="o", markersize=RING, color=INK.text, markerfacecolor="none", label="taken"),
        Line2D([], [], color=INK.muted, lw=0.7, ls=parts.DASHES, label="as it stood"),
    ]
