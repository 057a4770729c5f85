"""The report of a series of runs: one table over all of them, and what each system makes of the swept key."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.console import Console

from testbed.files import write_whole
from testbed.record.info import FILE_NAME as RUN_FILE
from testbed.record.reader import Run, load
from testbed.report import beside
from testbed.report.looks import look
from testbed.report.picture import save
from testbed.report.plots import DPI, STYLE
from testbed.report.summary import Target, running_mean, summarize
from testbed.report.tables import (
    markdown_beside,
    markdown_table,
    plain_unless_terminal,
    provenance,
    rich_table,
    rows,
    show_beside,
)
from testbed.report.wording import caveats, conditions, title

POINT = "point"
FIRST = "Here, in the first of these runs"
LOG_RATIO = 20.0  # largest value / smallest beyond which a linear axis hides the small ones
LEGEND = 7  # systems in a line of the legend
PANELS: tuple[tuple[str, str, float], ...] = (
    ("final_accuracy", "accuracy, %", 100.0),
    ("final_loss", "training loss", 1.0),
    ("mean_step_s", "time of a step, s", 1.0),
    ("bytes_a_step", "bytes of a step on all links, MB", 1e-6),
)


def write_series(folder: Path, labels: Sequence[str]) -> list[Path]:
    """Write `summary.csv`, `summary.md` and `series.png` of the series in `folder`, from the records of its runs.

    Parameters
    ----------
    labels : the runs' folders in the series, in order; those not begun yet are left out

    Returns
    -------
    The files written; none when no run has begun.
    """
    runs, frames = _read(folder, labels)
    if not frames:
        return []
    together = _together(frames)
    together["bytes_a_step"] = (together["wan_bytes"] + together["lan_bytes"]) / together["steps"]
    columns = [POINT, *(name for name in together.columns if name not in (POINT, "bytes_a_step"))]
    paths = [folder / name for name in ("summary.csv", "summary.md", "series.png")]
    write_whole(paths[0], together[columns].to_csv(index=False, float_format="%.10g"))
    write_whole(paths[1], _markdown(runs, frames, together, len(labels)))
    _draw({label: runs[label] for label in frames}, together, paths[2])
    return paths


def show_series(folder: Path, labels: Sequence[str], console: Console | None = None) -> None:
    """Print the table of the series in `folder` and the papers' numbers beside its own."""
    runs, frames = _read(folder, labels)
    if not frames:
        return
    console = plain_unless_terminal(console)
    first = runs[next(iter(frames))]
    console.print(
        rich_table(f"{title(first)}, a series of {len(labels)} runs", *rows(_together(frames), (POINT, "system")))
    )
    show_beside(console, [_key(labels[0]), *beside.HEADS], _compared(runs, frames), beside.setting(first, FIRST))


def _read(folder: Path, labels: Sequence[str]) -> tuple[dict[str, Run], dict[str, pd.DataFrame]]:
    """The runs that have begun, by their labels, and the summaries of those that have a result."""
    runs = {label: load(folder / label) for label in labels if (folder / label / RUN_FILE).is_file()}
    frames = {label: summarize(run) for label, run in runs.items()}
    return runs, {label: frame for label, frame in frames.items() if len(frame)}


def _together(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.assign(**{POINT: label}) for label, frame in frames.items()], ignore_index=True)


def _table(together: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table over all runs; the first column holds the values of the swept keys."""
    heads, cells = rows(together, by=(POINT, "system"))
    key = _key(str(together[POINT].iloc[0]))
    return [key, *heads[1:]], [[_short(line[0]), *line[1:]] for line in cells]


def _compared(runs: dict[str, Run], frames: dict[str, pd.DataFrame]) -> list[list[str]]:
    """The papers' numbers beside those of every run."""
    return [[_short(label), *row] for label, frame in frames.items() for row in beside.paper_rows(runs[label], frame)]


def _markdown(runs: dict[str, Run], frames: dict[str, pd.DataFrame], together: pd.DataFrame, wanted: int) -> str:
    label, first = next((label, run) for label, run in runs.items() if label in frames)
    parts = [f"# {title(first)}, a series of {wanted} runs", f"The first of them: {conditions(first)}"]
    parts += [f"> **{sentence}**" for sentence in caveats(first, frames[label])]
    if len(frames) < wanted:
        parts.append(f"> **{wanted - len(frames)} of {wanted} runs have no result yet**")
    parts.append(markdown_table(*_table(together)))
    parts += markdown_beside([_key(label), *beside.HEADS], _compared(runs, frames), beside.setting(first, FIRST))
    parts.append("![series](series.png)")
    parts.append(provenance(first))
    parts.append("This is of the first of the runs; each has its own report in the folder of its name.")
    return "\n\n".join(parts) + "\n"


def _draw(runs: dict[str, Run], together: pd.DataFrame, path: Path) -> None:
    single = together["system"].nunique() == 1
    with matplotlib.rc_context():
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(11.0, 7.2), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title(next(iter(runs.values()))), fontsize=14, fontweight="bold")
        axes = figure.subplots(2, 2).flat
        if single:
            _losses(axes[0], runs, "step", "step")
            _losses(axes[1], runs, "time_s", "time, s")
        panels = PANELS if not single else PANELS[:1] + PANELS[2:3]
        for place, (metric, label, scale) in zip(list(axes)[4 - len(panels) :], panels, strict=True):
            _by_point(place, together, list(runs), metric, label, scale)
        if not single:
            handles, names = axes[3].get_legend_handles_labels()
            lines = math.ceil(len(names) / LEGEND)
            figure.legend(
                handles, names, loc="outside lower center", ncols=math.ceil(len(names) / lines), frameon=False
            )
        save(figure, path)


def _losses(axes: Axes, runs: dict[str, Run], column: str, label: str) -> None:
    """Training loss of the only system, a line for each run; later ones darker."""
    shades = matplotlib.colormaps["viridis_r"](np.linspace(0.2, 0.95, len(runs)))
    for (name, run), shade in zip(runs.items(), shades, strict=True):
        for result in run.results[:1]:
            loss = running_mean(result.steps["loss"].to_numpy(), min(Target.of(run.info).window, len(result.steps)))
            x = result.steps[column] + (1 if column == "step" else 0)
            axes.plot(x, loss, color=shade, lw=2, label=_short(name))
    axes.set(xlabel=label, title=f"Training loss by {'step' if column == 'step' else 'time'}")
    axes.legend(frameon=False, title=_key(next(iter(runs))))


def _by_point(axes: Axes, together: pd.DataFrame, labels: list[str], metric: str, title: str, scale: float) -> None:
    """One metric of every system over the runs of the series."""
    means = together.groupby(["system", POINT], sort=False)[metric].mean() * scale
    for system in dict.fromkeys(together["system"]):
        style = look(system)
        values = means[system].reindex(labels)
        axes.plot(range(len(labels)), values, marker=style.marker, ls=style.line, color=style.color, label=style.label)
    axes.set_xticks(range(len(labels)), ["\n".join(value for _, value in _swept(label)) for label in labels])
    present = means[means > 0]
    if len(present) and present.max() / present.min() > LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.set(title=title[:1].upper() + title[1:], xlabel=_key(labels[0]))


def _short(label: str) -> str:
    """The values of a label: "workers=2-batch=60" is "2 / 60"."""
    return " / ".join(value for _, value in _swept(label)) or label


def _key(label: str) -> str:
    """The swept keys of a label: "workers / batch"."""
    return " / ".join(key.replace("_", " ") for key, _ in _swept(label)) or POINT


def _swept(label: str) -> list[tuple[str, str]]:
    """Keys and values of a label; values may hold a "-" (5e-06), and so may keys (isgq-mse.bits)."""
    return re.findall(r"(?:^|-)([a-z][^=]*)=(.*?)(?=-[a-z][^=]*=|$)", label)
