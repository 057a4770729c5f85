"""WeightGrad's threshold and exchanges."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK
from testbed.wan.plan import region_of

REGION_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
REASONS = {"significant": "#D55E00", "asked": "#999933", "interval": "#332288", "t-global": "#882255"}
MOST_REGIONS = len(REGION_COLORS)


@picture("threshold", order=8)
def threshold(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Significance of each region's update, its threshold, and the exchanges.

    WeightGrad's, in its first seed.
    """
    result, events = _first_with(run, "threshold")
    if result is None:
        return None
    crossed, rounds = events[events["event"] == "threshold"], events[events["event"] == "exchange"]
    figure = parts.sheet(2.9, [run])
    axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[6, 1])
    unit, scale = parts.time_unit(float(events["time_s"].max()))
    regions = sorted(set(map(region_of, crossed["node"])))[:MOST_REGIONS]
    handles = []
    for color, region in zip(REGION_COLORS, regions, strict=False):
        own = crossed[crossed["node"].map(region_of) == region]
        time = own["time_s"] / scale
        axes.plot(time, own["threshold"].astype(float), color=color, lw=1.2, drawstyle="steps-post", zorder=3)
        axes.plot(time, own["significance"].astype(float), "o", color=color, ms=2.2, mew=0, alpha=0.75, zorder=2)
        handles.append(Line2D([], [], color=color, label=region))
    handles.append(Line2D([], [], color=INK.muted, label="threshold"))
    handles.append(Line2D([], [], color=INK.muted, ls="", marker="o", ms=2.5, label="significance"))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(parts.PLAIN)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("significance")
    count, steps = len(rounds), len(result.steps)
    axes.set_title(f"{look(result.system).label}: {count:,} exchanges in {steps:,} steps")
    for reason, group in rounds.groupby("reason", sort=False):
        color = REASONS.get(str(reason), INK.text)
        rug.vlines(group["time_s"] / scale, 0, 1, color=color, lw=0.8)
        handles.append(Line2D([], [], color=color, ls="", marker="|", ms=6, mew=1.2, label=f"exchange: {reason}"))
    rug.set(ylim=(0, 1), yticks=[], xlabel=f"{clock(frame['fabric'])} ({unit})")
    rug.grid(visible=False)
    parts.legend(figure, handles, columns=2)
    return figure


def _first_with(run: Run, event: str) -> tuple[Result | None, pd.DataFrame]:
    """The first result with an event of that name, and all its events."""
    for result in run.results:
        events = result.events
        if (events["event"] == event).any():
            return result, events
    return None, pd.DataFrame()
