"""What all figures share: their size, style and looks, and how they are saved.

A figure is one column of a paper wide. The same records give the same file: fonts and style are fixed here, and no
date goes into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.record.reader import Run
from testbed.report import picture
from testbed.report.looks import look
from testbed.report.plots import BAND_SEEDS, STYLE, WARNING

WIDTH_INCHES = 3.3
DPI = 300
FORMATS = ("png", "pdf")
INK, MUTED, RULE = "#222222", "#666666", "#B8B8B8"
LEGEND_COLUMNS = 3
COLUMN_STYLE: dict[Any, Any] = {
    **STYLE,
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # TrueType: text stays text, as publishers want it
}


@contextmanager
def drawing() -> Iterator[None]:
    """The style of every figure, whatever the user's matplotlibrc says; to be held while drawing and while saving."""
    with matplotlib.rc_context():
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(COLUMN_STYLE)
        yield


def sheet(height_inches: float, runs: Sequence[Run]) -> Figure:
    """An empty figure; it says so where one of the runs trained on stand-in data."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    if any(run.info.data.stand_in for run in runs):
        figure.suptitle("STAND-IN DATA", fontsize=7, fontweight="bold", color=WARNING, ha="right", x=0.99)
    return figure


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `<stem>.png`, `<stem>.pdf`, each whole or not at all."""
    paths = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        picture.save(figure, path, kind)
        paths.append(path)
    return paths


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


def band(axes: Axes, x: Any, middle: Any, half: Any, color: str, seeds: int) -> None:
    """The interval around a line."""
    if seeds >= BAND_SEEDS:
        axes.fill_between(x, middle - half, middle + half, color=color, alpha=0.18, lw=0)


def legend(figure: Figure, handles: Sequence[Any], columns: int = LEGEND_COLUMNS) -> None:
    """A legend below all panels."""
    figure.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=min(columns, max(1, len(handles))),
        handlelength=2.4,
        columnspacing=1.2,
        labelspacing=0.25,
        borderaxespad=0.1,
    )


def keys(systems: Iterable[str]) -> list[Line2D]:
    """One legend entry per system."""
    return [Line2D([], [], label=look(system).label, **stroke(system)) for system in systems]


def legend_height(count: int, columns: int = LEGEND_COLUMNS) -> float:
    """Inches that a legend of `count` entries takes, to be added to a figure's height."""
    return 0.13 * -(-count // columns) + 0.05


def bar_labels(axes: Axes, systems: Sequence[str]) -> None:
    """Names of horizontal bars, the first on top."""
    axes.set_yticks(range(len(systems)), [look(system).label for system in systems])
    axes.set_ylim(len(systems) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
