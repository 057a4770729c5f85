"""What several pictures share: sheets, lines and marks of systems, bands, limits of axes, legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target
from testbed.report.numbers.curves import Curve
from testbed.report.numbers.wording import NOT_KNOWN, NOT_REACHED
from testbed.report.pictures.style import COLUMN, INK, Sheet

WIDTH_INCHES = 3.3  # of a paper's column
LEGEND_COLUMNS = 3  # where names are short
# Of a legend, in sizes of its font: a line's height; the stroke of an entry with the gaps around it.
LINE_EMS, HANDLE_EMS = 1.34, 4.8
BAND_SEEDS = 3  # from so many on a line has its interval around it: Student's t stretches that of two 13-fold
RAW_LINES = 4  # systems up to which the unsmoothed losses are drawn as well
LOG_TIME_RATIO = 25.0  # longest time / shortest beyond which a linear time axis hides the fast systems
LOG_BAR_RATIO = 100.0
PLAIN = "{x:g}"  # ticks of a logarithmic axis: 0.1, 1, 10
DASHES = (0, (4, 3))  # of a line that marks a target


def sheet(height_inches: float, runs: Sequence[Run]) -> Sheet:
    """An empty figure, one column wide; it says so where one of the runs trained on stand-in data."""
    figure = Sheet(WIDTH_INCHES, height_inches, COLUMN)
    if any(run.info.data.stand_in for run in runs):
        figure.suptitle("STAND-IN DATA", fontsize=7, fontweight="bold", color=INK.warning, ha="right", x=0.99)
    return figure


def stroke(system: str, **changes: Any) -> dict[str, Any]:
    """The line of a system, as `Axes.plot` takes it."""
    style = look(system)
    return {
        "color": style.color,
        "linestyle": style.line,
        "marker": style.marker,
        "markeredgewidth": 1.0 if style.marker in "x+" else 0.5,
        **changes,
    }


def marks(count: int, shift: int = 0) -> tuple[int, int]:
    """`markevery` of a line of `count` points: about five marks, shifted so that those of two lines do not coincide."""
    every = max(1, count // 5)
    return ((every // 2 + shift * every // 4) % every if count > 1 else 0, every)


def band(axes: Axes, x: Any, middle: Any, half: Any, color: str, seeds: int, **changes: Any) -> None:
    """The interval around a line, where there are seeds enough for one; not where it is wider than what it is of."""
    if seeds >= BAND_SEEDS:
        style = {"alpha": 0.18, "lw": 0, **changes}
        half = np.where(half < np.abs(middle), half, np.nan)  # a seed that diverges would hide all other lines
        axes.fill_between(x, middle - half, middle + half, color=color, **style)


def legend(figure: Figure, handles: Sequence[Any], columns: int = LEGEND_COLUMNS) -> None:
    """A legend below all panels, for which the figure grows; in fewer columns where long names need the room."""
    columns = columns_within(figure.get_figwidth(), [str(one.get_label()) for one in handles], columns)
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LINE_EMS * _em_inches() * lines + 0.05)
    figure.legend(
        handles=list(handles),
        loc="outside lower left",
        frameon=False,
        ncols=columns,
        handlelength=2.4,
        columnspacing=1.2,
        labelspacing=0.25,
        borderaxespad=0.1,
    )


def columns_within(inches: float, labels: Sequence[str], most: int) -> int:
    """How many columns a legend of these labels may have to be no wider; one at least, and `most` at most."""
    for columns in range(min(most, len(labels)), 1, -1):
        columns_of = np.array_split(labels, columns)  # as matplotlib fills them
        longest = [max(_text_inches(text, _font()) for text in column) for column in columns_of]
        if sum(HANDLE_EMS * _em_inches() + text for text in longest) <= inches:
            return columns
    return 1


def _font() -> FontProperties:
    """A legend's."""
    return FontProperties(size=matplotlib.rcParams["legend.fontsize"])


def _em_inches() -> float:
    return _font().get_size_in_points() / 72


def _text_inches(text: str, font: FontProperties) -> float:
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def fitting(points: float, text: str, inches: float) -> float:
    """The size, `points` at most, at which a line of text is no wider."""
    return min(points, points * inches / max(_text_inches(text, FontProperties(size=points)), 1e-9))


def keys(systems: Iterable[str]) -> list[Line2D]:
    """One legend entry per system."""
    return [Line2D([], [], label=look(system).label, **stroke(system)) for system in systems]


def bar_labels(axes: Axes, labels: Sequence[str]) -> None:
    """Names of horizontal bars, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def beside(axes: Axes, words: str, at: tuple[Any, Any], gap_points: float = 4, **style: Any) -> None:
    """Words to the right of a bar's end."""
    axes.annotate(words, at, (gap_points, 0), textcoords="offset points", va="center", **{"fontsize": 7, **style})


def unrelated(record: dict[str, Any]) -> str:
    """What stands in the place of a system's ratio, of a record of `aggregate`, that is missing."""
    missed = record["seeds"] - record["reached"]
    if not missed:
        return NOT_KNOWN
    return f"{NOT_REACHED} by {missed} of {record['seeds']}" if record["reached"] else NOT_REACHED


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit of a time axis, and how many seconds it has."""
    if longest_s < 300:
        return "s", 1.0
    return ("min", 60.0) if longest_s < 3 * 3600 else ("h", 3600.0)


def unit_of(curves: Sequence[Curve]) -> tuple[str, float]:
    """The unit of the time axis of some curves."""
    return time_unit(max((float(curve.time_s[-1]) for curve in curves if curve.time_s[-1] > 0), default=1.0))


def fit_times(axes: Axes, curves: Sequence[Curve], scale: float) -> None:
    """Begin the time axis at 0; where one system takes many times as long as another, make it logarithmic."""
    ends = [float(curve.time_s[-1]) for curve in curves if curve.time_s[-1] > 0]
    if not ends or max(ends) / min(ends) <= LOG_TIME_RATIO:
        axes.set_xlim(left=0)
        return
    starts = [curve.time_s[np.isfinite(curve.smooth)] / scale for curve in curves]
    axes.set_xscale("log")
    axes.set_xlim(left=min((start[0] for start in starts if len(start)), default=None))
    axes.xaxis.set_major_formatter(PLAIN)


def fit_losses(axes: Axes, curves: Sequence[Curve], target: Target) -> None:
    """Fit the axis to smoothed lines and target: single steps and a run that diverges must not squeeze the rest."""
    ends = [curve.smooth[np.isfinite(curve.smooth)] for curve in curves]
    ends = [end for end in ends if len(end)]
    if not ends:
        axes.text(0.5, 0.5, "no losses recorded", transform=axes.transAxes, ha="center", color=INK.missing)
        axes.set(xticks=[], yticks=[])
        return
    low, start = min(end.min() for end in ends), max(end[0] for end in ends)
    high = min(max(end.max() for end in ends), 1.5 * start)
    if target.loss is not None:
        low, high = min(low, target.loss), max(high, target.loss)
    margin = 0.08 * max(high - low, 1e-3 * abs(high), 1e-3)
    axes.set_ylim(low - margin, high + margin)
