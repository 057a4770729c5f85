"""Figures of what a system's own protocol decided: WeightGrad's threshold and exchanges, MQGrad's bits."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from testbed.record.reader import Result, Run
from testbed.report.figures import canvas
from testbed.report.looks import look
from testbed.report.plots import PLAIN, time_unit
from testbed.report.wording import clock
from testbed.wan.plan import region_of

REGION_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
REASONS = {"significant": "#D55E00", "asked": "#999933", "interval": "#332288", "t-global": "#882255"}
MOST_REGIONS = len(REGION_COLORS)


def threshold(run: Run, frame: pd.DataFrame) -> Figure | None:
    """WeightGrad: each region's significance against its threshold, and the exchanges that came of it; first seed."""
    result, events = _first_with(run, "threshold")
    if result is None:
        return None
    crossed, rounds = events[events["event"] == "threshold"], events[events["event"] == "exchange"]
    figure = canvas.sheet(2.9, [run])
    axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[6, 1])
    unit, scale = time_unit(float(events["time_s"].max()))
    regions = sorted(set(map(region_of, crossed["node"])))[:MOST_REGIONS]
    handles = []
    for color, region in zip(REGION_COLORS, regions, strict=False):
        own = crossed[crossed["node"].map(region_of) == region]
        time = own["time_s"] / scale
        axes.plot(time, own["threshold"].astype(float), color=color, lw=1.2, drawstyle="steps-post", zorder=3)
        axes.plot(time, own["significance"].astype(float), "o", color=color, ms=2.2, mew=0, alpha=0.75, zorder=2)
        handles.append(Line2D([], [], color=color, label=region))
    handles.append(Line2D([], [], color=canvas.MUTED, label="threshold"))
    handles.append(Line2D([], [], color=canvas.MUTED, ls="", marker="o", ms=2.5, label="significance"))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(PLAIN)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("significance")
    count, steps = len(rounds), len(result.steps)
    axes.set_title(f"{look(result.system).label}: {count:,} exchanges in {steps:,} steps")
    for reason, group in rounds.groupby("reason", sort=False):
        color = REASONS.get(str(reason), canvas.INK)
        rug.vlines(group["time_s"] / scale, 0, 1, color=color, lw=0.8)
        handles.append(Line2D([], [], color=color, ls="", marker="|", ms=6, mew=1.2, label=f"exchange: {reason}"))
    rug.set(ylim=(0, 1), yticks=[], xlabel=f"{clock(frame['fabric'])} ({unit})")
    rug.grid(visible=False)
    canvas.legend(figure, handles, columns=2)
    return figure


def bits(run: Run, frame: pd.DataFrame) -> Figure | None:
    """MQGrad: the bits it chose over the steps, a line per seed."""
    chosen = [(result, result.events) for result in run.results]
    chosen = [(result, events[events["event"] == "bits"]) for result, events in chosen]
    chosen = [(result, events) for result, events in chosen if len(events)]
    if not chosen:
        return None
    figure = canvas.sheet(1.9, [run])
    axes = figure.subplots()
    averages = []
    for place, (result, events) in enumerate(chosen):
        style = canvas.stroke(result.system, marker="", linestyle="-", linewidth=1.4 if place == 0 else 0.7)
        steps = np.append(events["step"].to_numpy(dtype=float), len(result.steps))
        values = events["bits"].to_numpy(dtype=float)
        alpha = 1.0 if place == 0 else 0.45
        axes.plot(steps, np.append(values, values[-1]), drawstyle="steps-post", alpha=alpha, **style)
        averages.append(np.average(values, weights=np.diff(steps)) if len(result.steps) > steps[0] else values[0])
    systems = list(dict.fromkeys(look(result.system).label for result, _ in chosen))
    mean = np.mean(averages)
    axes.set_title(f"{', '.join(systems)}: {mean:.1f} bits on average")
    axes.set(xlabel="step", ylabel="bits per value", xlim=(0, None))
    top = max(8, max(int(events["bits"].max()) for _, events in chosen))
    axes.set(ylim=(0, top + 0.5), yticks=range(0, top + 1, 2))
    return figure


def _first_with(run: Run, event: str) -> tuple[Result | None, pd.DataFrame]:
    """The first result with an event of that name, and all its events."""
    for result in run.results:
        events = result.events
        if (events["event"] == event).any():
            return result, events
    return None, pd.DataFrame()
