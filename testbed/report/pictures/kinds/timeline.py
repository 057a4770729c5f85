"""A system's first steps: a lane a role, messages as lines from lane to lane."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.timeline import Timeline
from testbed.report.numbers.timeline import timeline as of_result
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.kinds.time import PARTS
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK

MOST_SYSTEMS, MOST_ROLES = 3, 24  # beyond which nobody could tell them apart in a column
LANE_INCHES, BAR = 0.1, 0.7
MESSAGES = {"wan": (PARTS["wan"][1], 0.7, 0.9), "lan": (PARTS["lan"][1], 0.35, 0.8)}  # colour, width, opacity


@picture("timeline", order=11)
def timeline(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Who computes when, and which messages are on their way, in the first steps.

    A panel for each of the first systems, of its first seed; the lines across are steps' ends. Nothing of runs of many
    roles (`testbed timeline` has them).
    """
    firsts = {one.system: one for one in reversed(run.results)}
    found = [of_result(run, firsts[system]) for system in dict.fromkeys(one.system for one in run.results)]
    shown = [it for it in found if it is not None and len(it.roles) <= MOST_ROLES][:MOST_SYSTEMS]
    if not shown:
        return None
    lanes = sum(len(it.roles) for it in shown)
    figure = parts.sheet(0.45 + LANE_INCHES * lanes + 0.42 * len(shown), [run])
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=[len(it.roles) for it in shown])[:, 0]
    for axes, it in zip(panels, shown, strict=True):
        _panel(axes, it)
    panels[-1].set_xlabel(f"{clock(frame['fabric'])}")
    handles = [Patch(fc=PARTS[name][1], label=PARTS[name][0]) for name in ("compute", "codec")]
    words = {"wan": "message across the WAN", "lan": "on the LAN"}
    lines = [Line2D([], [], color=MESSAGES[name][0], lw=MESSAGES[name][1] * 2, label=words[name]) for name in MESSAGES]
    parts.legend(figure, [*handles, *lines], 2)
    return figure


def _panel(axes: Axes, it: Timeline) -> None:
    lane = {role: place for place, role in enumerate(it.roles)}
    unit, scale = ("ms", 1e-3) if it.end_s < 1 else ("s", 1.0)
    for name, across in (("lan", False), ("wan", True)):
        color, width, opacity = MESSAGES[name]
        chosen = it.messages[it.messages["wan"] == across]
        ends = zip(chosen["peer"], chosen["sent_s"], chosen["node"], chosen["arrived_s"], strict=True)
        lines = [[(sent_s / scale, lane[peer]), (came_s / scale, lane[node])] for peer, sent_s, node, came_s in ends]
        axes.add_collection(LineCollection(lines, colors=color, linewidths=width, alpha=opacity, zorder=2))
    for role, spans in it.computed.groupby("node"):
        codes = spans["codec_s"] > 0.5 * (spans["end_s"] - spans["begin_s"])
        for name, some in (("compute", spans[~codes]), ("codec", spans[codes])):
            bars = list(zip(some["begin_s"] / scale, (some["end_s"] - some["begin_s"]) / scale, strict=True))
            axes.broken_barh(bars, (lane[str(role)] - BAR / 2, BAR), fc=PARTS[name][1], ec="none", zorder=3)
    for done_s in it.steps_s:
        axes.axvline(done_s / scale, color=INK.text, lw=0.5, ls=parts.DASHES, zorder=1)
    axes.set_yticks(range(len(it.roles)), it.roles, fontsize=5.5)
    axes.tick_params(axis="y", length=0, pad=1)
    axes.grid(visible=False)
    axes.set_ylim(len(it.roles) - 0.4, -0.6)
    axes.set_xlim(0, 1.01 * it.end_s / scale)
    axes.set_title(f"{look(it.system).label}, {len(it.steps_s)} steps ({unit})")
