"""`comparison.png`: which system got there first, and what each put on the wire."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, MaxNLocator

from testbed.record.info import RunInfo
from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers import progress
from testbed.report.numbers.asked import Target, data_name, timing_only
from testbed.report.numbers.curves import Curve, curves_of
from testbed.report.numbers.sentences import conditions, judged, title, verdict
from testbed.report.numbers.summary import BASELINE, aggregate, counted
from testbed.report.numbers.wording import NO_EXCHANGE, NOT_REACHED, clock, duration, is_missing, size, times
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK, Sheet

WIDTH, HEADING, PANELS = 11.0, 1.22, 6.78  # inches: the picture, its title with one row of legend, the four panels
TIMING_PANELS = 3.4  # of one row
LEGEND_COLUMNS, LEGEND_ROW = 7, 0.24
SYSTEMS, BAR = 8, 0.22  # more systems than so many make the picture taller, by so much each


@picture("comparison", wide=True)
def comparison(run: Run, frame: pd.DataFrame) -> Figure:
    """Which system got there first, or is fastest, and what each put on the WAN.

    Loss by step and by time, speedup over the baseline, bytes; where no system reached the target, how long a step
    takes in the place of speedups; of a run in which nothing was computed, these two alone.
    """
    handles = [handle(system) for system in dict.fromkeys(counted(frame)["system"])]
    count = len(handles)
    columns = parts.columns_within(WIDTH, [str(one.get_label()) for one in handles], LEGEND_COLUMNS)
    rows = max(math.ceil(count / columns), 1)
    panels = TIMING_PANELS if timing_only(run.info) else PANELS
    heights = [HEADING + LEGEND_ROW * (rows - 1), panels + taller(count)]
    figure = Sheet(WIDTH, sum(heights), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    heading, body = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
    _head(heading, heights[0], run, frame)
    if handles:
        below = (0.004, -0.1 / heights[0])
        heading.legend(handles=handles, loc="lower left", bbox_to_anchor=below, ncols=columns, frameon=False)
    shape = {"nrows": 1} if timing_only(run.info) else {"nrows": 2, "height_ratios": [1.0, bars_share(count)]}
    draw_panels(list(body.subplots(ncols=2, **shape).flat), run, frame)
    return figure


def draw_panels(axes: Sequence[Axes], run: Run, frame: pd.DataFrame) -> None:
    """The panels: both of losses, what came of them, bytes; of a run in which nothing was computed the last two."""
    curves, target = curves_of(run), Target.of(run.info)
    together = aggregate(frame).to_dict("records")
    if not timing_only(run.info):
        _loss_by_step(axes[0], curves, target, run.info)
        _loss_by_time(axes[1], curves, target, frame)
    if any(record["reached"] for record in together):
        _speedup_bars(axes[-2], together, target)
    else:  # neither a speedup nor a time to a target that nobody has reached, or that there is not
        _step_bars(axes[-2], together)
    _wan_bars(axes[-1], together)


def taller(systems: int) -> float:
    return BAR * max(systems - SYSTEMS, 0)


def bars_share(systems: int) -> float:
    """Height of the bar panels against the loss panels: a bar keeps its thickness when there are many."""
    return float(np.clip(0.2 + 0.1 * systems, 0.45, 1.0)) + 2 * taller(systems) / PANELS


def _head(figure: SubFigure, height: float, run: Run, frame: pd.DataFrame) -> None:
    """Title, verdict, conditions, and a warning where one is due, in `height` inches above the legend."""
    figure.text(0.012, 1 - 0.10 / height, title(run), fontsize=15, fontweight="bold", va="top")
    for down, points, line, color in (
        (0.42, 11.5, verdict(run, frame), None),
        (0.68, 8.6, conditions(run), INK.small),
    ):
        size = parts.fitting(points, line, 0.976 * WIDTH)
        figure.text(0.012, 1 - down / height, line, fontsize=size, color=color, va="top")
    stands_in = run.info.data.stand_in and not timing_only(run.info)
    warnings = [f"STAND-IN DATA, not {data_name(run.info).removeprefix('stand-in for ')}"] if stands_in else []
    done, wanted = progress.counts(run.folder, run.info.systems, run.info.seeds)
    if done < wanted:
        warnings.append(f"{done} of {wanted} finished")
    if warnings:
        band = {"facecolor": INK.warning, "edgecolor": "none", "boxstyle": "round,pad=0.35"}
        text = " · ".join(warnings)
        place = (0.988, 1 - 0.11 / height)
        figure.text(*place, text, fontsize=11, fontweight="bold", color="white", ha="right", va="top", bbox=band)


def handle(system: str) -> Line2D:
    """A system's entry of the legend."""
    style = look(system)
    return Line2D([], [], color=style.color, ls=style.line, marker=style.marker, lw=2.2, ms=6, label=style.label)


def _draw_losses(axes: Axes, curves: list[Curve], target: Target, against: str, scale: float = 1.0) -> None:
    for curve in curves:
        style, x = look(curve.system), getattr(curve, against) / scale
        if len(curves) <= parts.RAW_LINES and np.isnan(curve.half).all():
            axes.plot(x, curve.raw, color=style.color, lw=0.6, alpha=0.22, zorder=1)
        parts.band(axes, x, curve.smooth, curve.half, style.color, curve.seeds, alpha=0.2, zorder=2)
        every = max(1, len(x) // 6)
        marked = against == "step"  # by time, markers show where the target was reached
        axes.plot(
            x,
            curve.smooth,
            color=style.color,
            linestyle=style.line,
            linewidth=2.0,
            marker=style.marker if marked else "",
            markersize=4.5,
            markevery=(every // 2, every),
            zorder=4 if curve.system == BASELINE else 3,
        )
    parts.fit_losses(axes, curves, target)
    _draw_target(axes, target)


def _draw_target(axes: Axes, target: Target) -> None:
    if target.loss is None or not len(axes.get_yticks()):
        return
    axes.axhline(target.loss, color=INK.text, lw=1.1, ls=parts.DASHES, zorder=2)
    axes.annotate(
        f"target {target.loss:g}",
        xy=(1.0, target.loss),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1.0},
    )


def _loss_by_step(axes: Axes, curves: list[Curve], target: Target, info: RunInfo) -> None:
    axes.set_title("Training loss by step")
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss ({judged(info)})")
    _draw_losses(axes, curves, target, "step")
    axes.set_xlim(left=0)


def _loss_by_time(axes: Axes, curves: list[Curve], target: Target, frame: pd.DataFrame) -> None:
    kind = clock(frame["fabric"])
    unit, scale = parts.unit_of(curves)
    axes.set_title(f"Training loss by {kind}")
    axes.set_xlabel(f"{kind} ({unit})")
    _draw_losses(axes, curves, target, "time_s", scale)
    parts.fit_times(axes, curves, scale)
    if target.loss is None or not frame["time_to_target_s"].notna().any():
        return
    axes.set_xlabel(f"{kind} ({unit}); a mark: mean time to target")
    by_time = aggregate(frame).sort_values("time_to_target_s", ascending=False, kind="stable")
    for record in by_time.to_dict("records"):  # the first to arrive is drawn on top
        if not is_missing(record["time_to_target_s"]):
            x, style = record["time_to_target_s"] / scale, look(record["system"])
            axes.plot([x, x], [axes.get_ylim()[0], target.loss], color=style.color, lw=1.2, ls=":", zorder=2)
            axes.plot(
                x,
                target.loss,
                marker=style.marker,
                color=style.color,
                ms=9,
                path_effects=[withStroke(linewidth=3.4, foreground="white")],  # a white edge would hide thin markers
                zorder=6,
                clip_on=False,
            )


def _speedup_bars(axes: Axes, together: list[dict], target: Target) -> None:
    """Speedups, or the bare times to target where there is no baseline that reached it."""
    related = any(not is_missing(record["speedup_vs_baseline"]) for record in together)
    axes.set_title(f"{'Speedup over baseline' if related else 'Time'} to {str(target) or 'a target'}")
    labels = [_speedup_label(record, target, related) for record in together]
    _bars(axes, together, "speedup_vs_baseline" if related else "time_to_target_s", labels)
    if related:
        axes.axvline(1.0, color=INK.text, lw=1.0, ls=parts.DASHES, zorder=1)
        axes.set_xlabel("times as fast as baseline (and time to target)")
    else:
        base = any(record["system"] == BASELINE and not is_missing(record["time_to_target_s"]) for record in together)
        axes.set_xlabel("s" if base else "s (no baseline that reached the target to compare with)")


def _speedup_label(record: dict, target: Target, related: bool) -> str:
    time_s, speedup = record["time_to_target_s"], record["speedup_vs_baseline"]
    if is_missing(time_s):
        return NOT_REACHED + (
            f" by {record['seeds'] - record['reached']} of {record['seeds']} seeds" if record["reached"] else ""
        )
    if not related:
        return duration(time_s)
    return f"{'no baseline' if is_missing(speedup) else times(speedup)}  ({duration(time_s)})"


def _step_bars(axes: Axes, together: list[dict]) -> None:
    axes.set_title("Time of a step")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    labels = [_step_label(record) for record in together]
    _bars(axes, together, "mean_step_s", labels)
    axes.set_xlabel("s (times as fast as baseline in brackets)")


def _step_label(record: dict) -> str:
    if is_missing(record["mean_step_s"]):
        return "not measured"
    related = record["system"] != BASELINE and not is_missing(record["step_speedup"])
    return duration(record["mean_step_s"]) + (f"  ({times(record['step_speedup'])})" if related else "")


def _wan_bars(axes: Axes, together: list[dict]) -> None:
    same = len({record["steps"] for record in together}) <= 1
    axes.set_title("Bytes on the WAN" if same else "Bytes on the WAN per step")
    shown = [dict(record) for record in together]
    for record in shown:
        for end in ("", "_low", "_high"):
            record[f"wan{end}"] = record[f"wan_bytes{end}"] / (1 if same else record["steps"] or np.nan)
    labels = []
    for record in shown:
        ratio = record["compression"]
        against = "" if is_missing(ratio) or record["system"] == BASELINE else f"  ({_fold(ratio)})"
        against = f"  ({NO_EXCHANGE})" if record["silent"] else against
        labels.append("not measured" if is_missing(record["wan"]) else size(record["wan"]) + against)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    _bars(axes, shown, "wan", labels)
    axes.set_xlabel("all links between regions, headers included")


def _fold(compression: float) -> str:
    return f"{times(compression)} less" if compression >= 1 else f"{times(1 / compression)} more"


def _bars(axes: Axes, records: list[dict], metric: str, labels: list[str]) -> None:
    """Horizontal bars in the order of the experiment, each with its label and, over seeds, its interval."""
    values = np.array([record[metric] for record in records], dtype=float)
    places = np.arange(len(records))
    styles = [look(record["system"]) for record in records]
    filled = np.nan_to_num(values)
    height = 0.62 * min(1.0, (len(records) + 1) / 4)  # one or two bars need not fill the panel
    axes.barh(places, filled, color=[style.color for style in styles], height=height, zorder=2)
    known = filled[filled > 0]
    left, largest = 0.0, known.max(initial=0.0) or 1.0
    if metric == "speedup_vs_baseline" and len(known) and largest / known.min() > parts.LOG_BAR_RATIO:
        axes.set_xscale("log")
        left = known.min() / 2
    for place, record, value, label in zip(places, records, filled, labels, strict=True):
        high = record[f"{metric}_high"]
        tip = max(value, left)
        if not is_missing(high) and not is_missing(record[metric]):
            axes.plot([max(record[f"{metric}_low"], 0), high], [place, place], color=INK.text, lw=1.3, zorder=3)
            tip = max(value, high)
        missing = is_missing(record[metric])
        ink = {"color": INK.missing, "fontstyle": "italic"} if missing else {"color": "#111111"}
        parts.beside(axes, label, (tip, place), 5, fontsize=9.5, zorder=5, **ink)
        largest = max(largest, tip)
    axes.set_yticks(places, [style.label for style in styles])
    axes.set_ylim(max(len(records), 1) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    if not len(known):
        axes.set_xticks([])
    elif left:
        axes.set_xlim(left, largest * (largest / left) ** 0.38)
        axes.xaxis.set_major_formatter(parts.PLAIN)
    else:
        axes.set_xlim(0, largest * 1.38)  # room for the longest bar's label
