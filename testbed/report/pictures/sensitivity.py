"""The map of `testbed sensitivity`: every system's speedup as one thing after another is varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from testbed.report.looks import look
from testbed.report.numbers.summary import BASELINE
from testbed.report.pictures import parts
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, settle

PANEL_INCHES = (2.1, 1.9)
COLUMNS = 3
MOST_LEVEL = 5  # ticks that have room side by side


class Varied(Protocol):
    """What is varied in a panel: its name in the table, and what stands below it."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...


def draw(frame: pd.DataFrame, axes: Sequence[Varied], stands_at: dict[str, object], title: str) -> Sheet:
    """A panel for each axis, both of its scales logarithmic.

    Parameters
    ----------
    frame : as `testbed.harness.sensitivity.measured` returns it
    stands_at : the experiment's own value on each axis, which is marked
    """
    systems = [system for system in dict.fromkeys(frame["system"]) if system != BASELINE]
    rows = -(-len(axes) // COLUMNS)
    width, height = PANEL_INCHES
    with drawing(COLUMN):
        figure = Sheet(width * min(COLUMNS, len(axes)), height * rows + 0.25, COLUMN)
        grid = figure.subplots(rows, min(COLUMNS, len(axes)), sharey=True, squeeze=False).ravel()
        for panel, axis in zip(grid, axes, strict=False):
            _panel(panel, frame[frame["axis"] == axis.name], systems, stands_at.get(axis.name))
            panel.set_xlabel(axis.label)
        for panel in grid[len(axes) :]:
            panel.set_visible(False)
        for panel in grid[::COLUMNS]:
            panel.set_ylabel("speedup of a step")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        parts.legend(figure, parts.keys(systems), 2 * COLUMNS)
        settle(figure)
    return figure


def _panel(panel: Axes, frame: pd.DataFrame, systems: Sequence[str], stands_at: object) -> None:
    values = list(dict.fromkeys(frame["value"]))
    named = any(isinstance(value, str) for value in values)
    for system in systems:
        speedups = frame[frame["system"] == system].set_index("value")["speedup"].reindex(values)
        at = range(len(values)) if named else values
        panel.plot(list(at), speedups, **parts.stroke(system, lw=1.2, ms=3.2), label=look(system).label)
    panel.axhline(1.0, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(parts.PLAIN)
    if named:
        panel.set_xticks(range(len(values)), [str(value) for value in values])
    else:
        panel.set_xscale("log")
        panel.set_xticks(values, [f"{value:,g}" for value in values])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.tick_params(axis="x", labelrotation=45 if len(values) > MOST_LEVEL else 0)
    if stands_at in values:
        panel.axvline(values.index(stands_at) if named else stands_at, color=INK.muted, lw=0.8, zorder=1)  # type: ignore[arg-type]
