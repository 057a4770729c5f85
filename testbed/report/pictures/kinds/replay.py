"""`replay.png`: a trace, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from testbed.record.info import RunInfo
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target, experiment_of
from testbed.report.numbers.courses import Course, Worst, courses_of, last_s, throughput, told, worst_of
from testbed.report.numbers.curves import Curve, curves_of
from testbed.report.numbers.sentences import conditions, judged, title
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK, Sheet

PANELS = 4  # links that are drawn
LINE = 165  # characters of the small print
ASKED = "#DCE3EC"  # the area under what the trace asked


@picture("replay", wide=True)
def replay(run: Run, frame: pd.DataFrame) -> Figure | None:
    """What a trace asked of the WAN, what crossed it, and how the training went on under it."""
    results, trace = _first_seeds(run), experiment_of(run.info).topology.trace
    courses = courses_of(run, results) if trace and results else []
    if not trace or not courses:
        return None
    end_s = max(last_s(result) for result in results)
    shown, worst = courses[:PANELS], worst_of(courses, end_s)
    heights = [1.3, 1.5 * len(shown) + 3.0]
    figure = Sheet(10.0, sum(heights), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    heading, body = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
    notes = [f"{len(shown)} of {len(courses)} changed links shown, those that get slowest"] if courses[PANELS:] else []
    notes += [f"seed {results[0].seed} of {len(run.info.seeds)}"] if len(run.info.seeds) > 1 else []
    _head(heading, run, trace, results, worst, notes)
    axes = body.subplots(len(shown) + 1, 1, sharex=True, height_ratios=[*[1.5] * len(shown), 3.0])
    for panel, course in zip(axes, shown, strict=False):
        _draw_link(panel, course, results, end_s)
    _draw_losses(axes[-1], curves_of(replace(run, results=results)), run.info)
    if worst is not None:
        _shade(axes, worst)
    axes[-1].set_xlim(0, end_s)
    axes[-1].set_xlabel(f"{clock([run.info.fabric])} (s)")
    return figure


def _first_seeds(run: Run) -> list[Result]:
    """One result of each system that did a step; all of a system's seeds had the same trace."""
    return list({result.system: result for result in reversed(run.results) if len(result.steps)}.values())[::-1]


def _head(
    figure: SubFigure, run: Run, trace: str, results: Sequence[Result], worst: Worst | None, notes: list[str]
) -> None:
    """Title, what the worst of the trace did to each system, conditions, and the legend of all panels."""
    name = Path(trace).name.removesuffix(".csv")
    figure.text(0.012, 0.93, f"{title(run)} under the trace {name}", fontsize=14, fontweight="bold", va="top")
    figure.text(0.012, 0.66, told(results, worst) if worst else "", fontsize=11, va="top")
    small = fill(" · ".join([conditions(run), *notes]), LINE)
    figure.text(0.012, 0.44, small, fontsize=8, color=INK.small, va="top")
    handles: list[Artist] = [Patch(facecolor=ASKED, edgecolor=INK.text, label="capacity asked by the trace")]
    for result in results:
        style = look(result.system)
        handles.append(Line2D([], [], color=style.color, ls=style.line, lw=2.2, label=style.label))
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.004, -0.1), ncols=8, frameon=False)


def _shade(axes: Sequence[Axes], worst: Worst) -> None:
    """Mark the worst times in all panels, and say in the first how bad they are."""
    for begin_s, stop_s in worst.spans:
        for panel in axes:
            panel.axvspan(begin_s, stop_s, color=INK.warning, alpha=0.08, lw=0, zorder=0)
    longest = max(worst.spans, key=lambda span: span[1] - span[0])
    axes[0].annotate(
        f"{100 * worst.share:.2g} %",
        xy=(sum(longest) / 2, 0.88),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="center",
        fontsize=11,
        fontweight="bold",
        color=INK.warning,
        zorder=5,
    )


def _draw_link(axes: Axes, course: Course, results: Sequence[Result], end_s: float) -> None:
    """Capacity asked as an area with a bold edge, each system's throughput as a line within it."""
    edges, asked = np.append(course.time_s, max(end_s, course.time_s[-1])), np.append(course.goodput_mbit, 0.0)
    asked[-1] = asked[-2]
    axes.fill_between(edges, asked, step="post", color=ASKED, lw=0, zorder=1)
    axes.step(edges, asked, where="post", color=INK.text, lw=1.4, zorder=2)
    for result in results:
        at_s, mbit = throughput(result, course.link)
        style = look(result.system)
        axes.step(at_s, mbit, where="post", color=style.color, lw=1.3, zorder=3)
    rtt = f", RTT {min(course.rtt_ms):g} to {max(course.rtt_ms):g} ms" if len(course.rtt_ms) > 1 else ""
    axes.set_title(f"{course.name}: capacity asked, goodput measured{rtt}", fontsize=10)
    axes.set_ylabel("Mbit/s")
    axes.set_ylim(0, 1.12 * course.goodput_mbit.max())
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _draw_losses(axes: Axes, curves: Sequence[Curve], info: RunInfo) -> None:
    target = Target.of(info)
    for curve in curves:
        style = look(curve.system)
        axes.plot(curve.time_s, curve.smooth, color=style.color, ls=style.line, lw=2.0, zorder=3)
        end = curve.time_s[-1:], curve.smooth[-1:]
        axes.plot(*end, marker=style.marker, color=style.color, ms=6, zorder=4, clip_on=False)
    if target.loss is not None:
        axes.axhline(target.loss, color=INK.text, lw=1.1, ls=parts.DASHES, zorder=2, label=f"target {target.loss:g}")
        axes.legend(loc="upper right", frameon=False)
    limits = axes.get_ylim()  # single steps must not squeeze the means
    for curve in curves if len(curves) <= parts.RAW_LINES else ():
        axes.plot(curve.time_s, curve.raw, color=look(curve.system).color, lw=0.6, alpha=0.25, zorder=1)
    axes.set_ylim(limits)
    axes.set_title("Training loss by time", fontsize=10)
    axes.set_ylabel(f"loss ({judged(info)})")
