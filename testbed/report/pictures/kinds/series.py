"""`series.png`: what each system makes of the key that a series sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill as wrap

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers import labels
from testbed.report.numbers.asked import Target
from testbed.report.numbers.faultless import against_faultless
from testbed.report.numbers.reached import running_mean
from testbed.report.numbers.sentences import title
from testbed.report.pictures import parts
from testbed.report.pictures.against import against
from testbed.report.pictures.parts import PLAIN
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import Sheet

LOG_RATIO = 20.0  # largest value / smallest beyond which a linear axis hides the small ones
LEGEND = 7  # systems in a line of the legend
TICK_LETTERS = 64  # below all of a panel's ticks
PANELS: tuple[tuple[str, str, float], ...] = (
    ("final_accuracy", "accuracy, %", 100.0),
    ("final_loss", "training loss", 1.0),
    ("mean_step_s", "time of a step, s", 1.0),
    ("bytes_a_step", "bytes of a step on all links, MB", 1e-6),
)


@picture("series", wide=True, of_several=True)
def series(runs: Sequence[Run], frame: pd.DataFrame) -> Figure:
    """Accuracy, loss, time and bytes of a step of each system over the runs of a series; of a single one its losses.

    Of a series under different faults it is the picture of what each fault costs (`pictures.against`).
    """
    named = {run.folder.name: run for run in runs}
    faulted = against_faultless(named, {name: each for name, each in frame.groupby("run", sort=False)})
    if len(faulted):
        return against(faulted, {name: labels.short(name) for name in named}, title(runs[0]))
    single = frame["system"].nunique() == 1
    frame = frame.assign(bytes_a_step=(frame["wan_bytes"] + frame["lan_bytes"]) / frame["steps"])
    figure = Sheet(11.0, 7.2)
    figure.suptitle(title(runs[0]), fontsize=14, fontweight="bold")
    axes = figure.subplots(2, 2).flat
    if single:
        _losses(axes[0], runs, "step", "step")
        _losses(axes[1], runs, "time_s", "time, s")
    panels = PANELS if not single else PANELS[:1] + PANELS[2:3]
    for place, (metric, head, scale) in zip(list(axes)[4 - len(panels) :], panels, strict=True):
        _by_run(place, frame, [run.folder.name for run in runs], metric, head, scale)
    if not single:
        parts.legend(figure, axes[3].get_legend_handles_labels()[0], LEGEND)
    return figure


def _losses(axes: Axes, runs: Sequence[Run], column: str, label: str) -> None:
    """Training loss of the only system, a line for each run; later ones darker."""
    shades = matplotlib.colormaps["viridis_r"](np.linspace(0.2, 0.95, len(runs)))
    for run, shade in zip(runs, shades, strict=True):
        for result in run.results[:1]:
            loss = running_mean(result.steps["loss"].to_numpy(), min(Target.of(run.info).window, len(result.steps)))
            x = result.steps[column] + (1 if column == "step" else 0)
            axes.plot(x, loss, color=shade, lw=2, label=labels.short(run.folder.name))
    axes.set(xlabel=label, title=f"Training loss by {'step' if column == 'step' else 'time'}")
    axes.legend(frameon=False, title=labels.key(runs[0].folder.name))


def _by_run(axes: Axes, frame: pd.DataFrame, names: list[str], metric: str, head: str, scale: float) -> None:
    """One metric of every system over the runs."""
    means = frame.groupby(["system", "run"], sort=False)[metric].mean() * scale
    for system in dict.fromkeys(frame["system"]):
        style = look(system)
        values = means[system].reindex(names)
        axes.plot(range(len(names)), values, marker=style.marker, ls=style.line, color=style.color, label=style.label)
    letters = max(5, TICK_LETTERS // len(names))
    told = ["\n".join(wrap(value, letters) for value in labels.short(name).split(" / ")) for name in names]
    axes.set_xticks(range(len(names)), told)
    present = means[means > 0]
    if len(present) and present.max() / present.min() > LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(PLAIN)
    axes.set(title=head[:1].upper() + head[1:], xlabel=labels.key(names[0]))
