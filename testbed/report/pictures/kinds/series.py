"""`series.png`: what each system makes of the keys that a series sweeps, or of whatever tells several runs apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from textwrap import fill

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from testbed.record.reader import Run
from testbed.record.series import Axis, Grid, grid, labels
from testbed.report.looks import look
from testbed.report.numbers.curves import curves_of
from testbed.report.numbers.faultless import against_faultless
from testbed.report.numbers.interval import half_width
from testbed.report.numbers.sentences import title
from testbed.report.pictures import parts
from testbed.report.pictures.against import against
from testbed.report.pictures.parts import PLAIN
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK, Sheet

LOG_RATIO = 20.0  # largest value / smallest beyond which a linear axis hides the small ones
LEGEND = 7  # systems in a line of the legend
TICK_LETTERS = 64  # below all panels of a row
SHADED = 8  # runs of a single system whose losses are drawn, each in a shade of its own
LABEL_LETTERS = 22  # of a row's axis
BARS = 0.8  # of the room between two places, which the bars of one take
ASIDE_INCHES = 0.05  # between the whiskers of two systems at a place
PANELS = 4
WIDTH_INCHES, HEIGHT_INCHES, ROW_INCHES = 11.0, 7.2, 2.1


@dataclass(frozen=True)
class Metric:
    """A column of the summary, its head, the factor from the one to the other, and what no value can be above."""

    column: str
    head: str
    factor: float = 1.0
    most: float = inf


METRICS = (
    Metric("time_to_target_s", "time to target, s"),
    Metric("final_accuracy", "accuracy, %", 100.0, most=100.0),
    Metric("final_loss", "training loss"),
    Metric("mean_step_s", "time of a step, s"),
    Metric("bytes_a_step", "bytes of a step on all links, MB", 1e-6),
)


@picture("series", wide=True, of_several=True)
def series(runs: Sequence[Run], frame: pd.DataFrame) -> Figure:
    """Time to target, accuracy, loss, time and bytes of a step of each system over the runs of a series.

    A line where what is swept are numbers, bars where they are names; of two axes a column of panels for each place on
    one of them. Of a single system over one axis its losses, too. Of a series under different faults it is the picture
    of what each fault costs (`pictures.against`).
    """
    names = labels([run.folder for run in runs])
    named, over = dict(zip(names, runs, strict=True)), grid([run.folder for run in runs])
    faulted = against_faultless(named, {name: each for name, each in frame.groupby("run", sort=False)})
    if len(faulted):
        return against(faulted, {name: over.called(name) for name in named}, _title(runs, over))
    frame = frame.assign(bytes_a_step=(frame["wan_bytes"] + frame["lan_bytes"]) / frame["steps"])
    shown = [metric for metric in METRICS if frame[metric.column].notna().any()]
    single = frame["system"].nunique() == 1 and len(over.axes) == 1 and len(runs) <= SHADED
    figure = Sheet(WIDTH_INCHES, HEIGHT_INCHES)
    figure.suptitle(_title(runs, over), fontsize=14, fontweight="bold")
    if single and "final_loss" in {metric.column for metric in shown}:
        _single(figure, runs, frame, over)
    else:
        _several(figure, frame, over, _chosen(shown))
    return figure


def _title(runs: Sequence[Run], over: Grid) -> str:
    """As that of a run, without the profile where it is one of what is swept; of several targets, all their names."""
    targets = list(dict.fromkeys(run.info.target for run in runs))
    profiles = {run.info.profile for run in runs}
    said = title(runs[0]) if len(targets) == 1 and len(profiles) == 1 else ", ".join(targets)
    return f"{said} (STAND-IN DATA)" if any(run.info.data.stand_in for run in runs) else said


def _chosen(shown: Sequence[Metric]) -> list[Metric]:
    """As many as there is room for: where there is a time to target, the loss is the one to leave out."""
    kept = list(shown)
    if len(kept) > PANELS:
        kept = [metric for metric in kept if metric.column != "final_loss"]
    return kept[:PANELS]


def _single(figure: Figure, runs: Sequence[Run], frame: pd.DataFrame, over: Grid) -> None:
    """The losses of the only system, its accuracy, and the time of its steps."""
    axes = list(figure.subplots(2, 2).flat)
    _losses(axes[0], runs, over, "step", "step")
    _losses(axes[1], runs, over, "time_s", "time, s")
    for place, metric in zip(axes[2:], (METRICS[1], METRICS[3]), strict=True):
        _panel(place, frame, over, metric, (), metric.head[:1].upper() + metric.head[1:])
        place.set_xlabel(over.name)


def _losses(axes: Axes, runs: Sequence[Run], over: Grid, column: str, label: str) -> None:
    """Training loss of the only system, a line for each run; later ones darker."""
    shades = matplotlib.colormaps["viridis_r"](np.linspace(0.2, 0.95, len(runs)))
    for run, name, shade in zip(runs, over.at, shades, strict=True):
        for curve in curves_of(replace(run, results=run.results[:1])):
            axes.plot(getattr(curve, column), curve.smooth, color=shade, lw=2, label=over.called(name))
    axes.set(xlabel=label, title=f"Training loss by {'step' if column == 'step' else 'time'}")
    axes.legend(frameon=False, title=over.name)


def _several(figure: Sheet, frame: pd.DataFrame, over: Grid, metrics: Sequence[Metric]) -> None:
    """All systems: of one axis a panel a metric, of more a row a metric, and a column for each place on the others."""
    across = _across(over)
    others = [number for number in range(len(over.axes)) if number != across]
    columns = [dict(zip(others, at, strict=True)) for at in product(*(range(len(over.axes[n].places)) for n in others))]
    if not others:
        rows = 2 if len(metrics) > 2 else 1
        panels = list(figure.subplots(rows, -(-len(metrics) // rows), squeeze=False).flat)
        for axes, metric in zip(panels, metrics, strict=False):
            _panel(axes, frame, over, metric, (), metric.head[:1].upper() + metric.head[1:])
            axes.set_xlabel(over.name)
        for axes in panels[len(metrics) :]:
            axes.set_axis_off()
    else:
        figure.set_figheight(ROW_INCHES * len(metrics) + 1.2)
        table = figure.subplots(len(metrics), len(columns), squeeze=False, sharex=True, sharey="row")
        for number, (row, metric) in enumerate(zip(table, metrics, strict=True)):
            for axes, at in zip(row, columns, strict=True):
                head = ", ".join(f"{over.axes[n].name} {over.axes[n].values[place]}" for n, place in at.items())
                _panel(axes, frame, over, metric, tuple(at.items()), head if not number else "", len(columns))
            row[0].set_ylabel(fill(metric.head, LABEL_LETTERS))
        for axes in table[-1]:
            axes.set_xlabel(over.axes[across].name)
    systems = dict.fromkeys(frame["system"])
    bars = [Patch(color=look(system).color, label=look(system).label) for system in systems]
    parts.legend(figure, parts.keys(systems) if _positions(over.axes[across])[1] else bars, LEGEND)


def _across(over: Grid) -> int:
    """The axis along which a panel shows its values: of numbers before of names, then the longest."""
    return max(range(len(over.axes)), key=lambda n: (over.axes[n].numbers is not None, len(over.axes[n].places)))


def _panel(
    axes: Axes,
    frame: pd.DataFrame,
    over: Grid,
    metric: Metric,
    at: Sequence[tuple[int, int]],
    head: str,
    beside: int = 1,
) -> None:
    """One metric of every system along the axis that is shown across, with its 95 % interval over the seeds.

    Parameters
    ----------
    at : the other axes' numbers, and the place on each
    beside : panels in a row
    """
    across = _across(over)
    axis = over.axes[across]
    here = {places[across]: label for label, places in over.at.items() if all(places[n] == place for n, place in at)}
    x, lines = _positions(axis)
    systems = list(dict.fromkeys(frame["system"]))
    for number, system in enumerate(systems):
        means, halves = _means(frame[frame["system"] == system], here, len(axis.places), metric)
        if lines:
            order = np.argsort(x)
            style = parts.stroke(system, linestyle=look(system).line)
            drawn = axes.errorbar(x[order], means[order], yerr=halves[:, order], capsize=2, **style)
            aside = ScaledTranslation((number - (len(systems) - 1) / 2) * ASIDE_INCHES, 0, axes.figure.dpi_scale_trans)
            for part in drawn.get_children():  # whiskers side by side, wherever the axis has its values
                part.set_transform(axes.transData + aside)
        else:
            width = BARS / len(systems)
            shift = (number - (len(systems) - 1) / 2) * width
            color, whisker = look(system).color, {"lw": 1}
            axes.bar(x + shift, means, width * 0.92, yerr=halves, color=color, ecolor=INK.text, error_kw=whisker)
    _ticks(axes, axis, x, lines, beside)
    _fit(axes, frame[metric.column] * metric.factor)
    axes.set_title(head)


def _positions(axis: Axis) -> tuple[np.ndarray, bool]:
    """Where the places of an axis stand, and whether a line may join them: numbers at their values."""
    if axis.numbers is not None:
        return np.array(axis.numbers), True
    numeric = all(_is_number(value) for place in axis.places for value in place)
    return np.arange(len(axis.places), dtype=float), numeric


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _means(frame: pd.DataFrame, here: dict[int, str], count: int, metric: Metric) -> tuple[np.ndarray, np.ndarray]:
    """Of one system at each place the mean, and the interval below and above it; NaN where a seed has no value."""
    means, halves = np.full(count, np.nan), np.zeros((2, count))
    for place, label in here.items():
        values = frame.loc[frame["run"] == label, metric.column].to_numpy(dtype="float64", na_value=np.nan)
        values = values * metric.factor
        if len(values) and not np.isnan(values).any():
            means[place] = values.mean()
            half = float(np.nan_to_num(half_width(values)))
            below = min(half, means[place] - values.min() / 2)  # a logarithmic axis has no 0
            halves[:, place] = below, min(half, metric.most - means[place])
    return means, np.maximum(halves, 0.0)


def _ticks(axes: Axes, axis: Axis, x: np.ndarray, lines: bool, beside: int) -> None:
    """A tick at each place, called as it is."""
    room = max(5, TICK_LETTERS // (len(axis.places) * beside))
    told = ["\n".join(fill(value, room) for value in place) for place in axis.places]
    if lines and axis.numbers is not None and x.min() > 0 and x.max() / x.min() > LOG_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(x, told)
    if not lines:
        axes.set_xlim(-0.5, len(x) - 0.5)
        axes.grid(axis="x", visible=False)


def _fit(axes: Axes, values: pd.Series) -> None:
    """A logarithmic axis where a linear one would hide the small values; bars begin at 0 on the other."""
    present = values[values > 0]
    if len(present) and present.max() / present.min() > LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(PLAIN)
