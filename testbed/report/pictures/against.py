"""What each series of faults does to each system: its times as multiples of those without faults."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.report.looks import look
from testbed.report.numbers.faultless import RATIOS
from testbed.report.numbers.interval import of_ratios
from testbed.report.pictures import parts
from testbed.report.pictures.style import INK, Sheet

WIDTH_INCHES = 11.0
HEADS = {"time_ratio": "Time for all steps", "target_ratio": "Time to target"}
MARK_INCHES = 0.13  # of the height of one system's mark in a row
COLUMNS = 5  # of the legend
NAME = 34  # letters of a fault in a line of its name


def against(frame: pd.DataFrame, short: Mapping[str, str], title: str) -> Figure:
    """A row a fault, a mark a system with its 95 % interval over seeds; at 1 a fault costs nothing.

    Parameters
    ----------
    frame : of `numbers.faultless.against_faultless`
    short : what the runs are called
    title : over the picture

    A system that did not come to its end, or to its target, in one of the seeds has no mark there.
    """
    points, systems = (list(dict.fromkeys(frame[name])) for name in ("point", "system"))
    row = max(2, len(systems)) * MARK_INCHES + 0.12
    figure = Sheet(WIDTH_INCHES, len(points) * row + 1.6)
    figure.suptitle(title, fontsize=14, fontweight="bold")
    panels = figure.subplots(1, len(RATIOS), sharey=True)
    for axes, column in zip(panels, RATIOS.values(), strict=True):
        for place, system in enumerate(systems):
            shift = (place - (len(systems) - 1) / 2) * MARK_INCHES / row
            _system(axes, frame[frame["system"] == system], points, column, system, shift)
        _frame(axes, len(points), HEADS[column])
    panels[0].set_yticks(range(len(points)), [textwrap.fill(short[str(point)], NAME) for point in points])
    panels[0].set_ylim(len(points) - 0.5, -0.5)
    parts.legend(figure, parts.keys(systems), COLUMNS)
    return figure


def _system(axes: Axes, frame: pd.DataFrame, points: list[object], column: str, system: str, shift: float) -> None:
    """The marks of one system, `shift` rows below the middle of each row."""
    for place, point in enumerate(points):
        ratios = frame.loc[frame["point"] == point, column].to_numpy(dtype="float64")
        if not len(ratios) or np.isnan(ratios).any():
            continue
        mean, low, high = of_ratios(ratios)
        whiskers = np.nan_to_num([[mean - low], [high - mean]])
        axes.errorbar(mean, place + shift, xerr=whiskers, **parts.stroke(system, linestyle="none"), lw=1, ms=4)
    axes.plot([], [], label=look(system).label)


def _frame(axes: Axes, rows: int, head: str) -> None:
    axes.axvline(1.0, color=INK.rule, lw=1, zorder=0)
    for place in range(1, rows):
        axes.axhline(place - 0.5, color=INK.rule, lw=0.4, zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g} ×")
    axes.set(title=head, xlabel="of that without faults")
    axes.grid(axis="y", visible=False)
