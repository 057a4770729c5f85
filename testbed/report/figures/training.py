"""Figures of how the training went: loss, accuracy, speedup, bytes against accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from testbed.record.info import DONE
from testbed.record.reader import Run
from testbed.report import papers
from testbed.report.curves import Curve, curves_of
from testbed.report.figures import canvas
from testbed.report.interval import half_width
from testbed.report.looks import look
from testbed.report.plots import LOG_BAR_RATIO, LOG_TIME_RATIO, PLAIN, limit_losses, time_unit
from testbed.report.summary import BASELINE, Target, aggregate
from testbed.report.wording import NOT_REACHED, clock, is_missing, times

WORKERS_SYSTEM = "weightgrad"  # whose runs with more and fewer workers are drawn where all runs have it
SEQUENCE = ("#9ecae1", "#4292c6", "#08519c", "#08306b")  # few to many workers, light to dark
NAMED_POINTS = 8  # systems up to which a point has its name beside it


def loss(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Training loss against steps and against time, one line per system (WeightGrad, figures 5a to 5c)."""
    curves = curves_of(run)
    if not curves:
        return None
    figure = canvas.sheet(3.7 + canvas.legend_height(len(curves)), [run])
    by_step, by_time = figure.subplots(2, 1)
    _losses(by_step, by_time, curves, [canvas.stroke(curve.system) for curve in curves], Target.of(run.info), frame)
    canvas.legend(figure, canvas.keys(curve.system for curve in curves))
    return figure


def workers(runs: Sequence[Run], frame: pd.DataFrame) -> Figure | None:
    """Training loss of one system with more and fewer workers, against steps and time (WeightGrad, figure 4)."""
    shared = [s for s in dict.fromkeys(frame["system"]) if all(s in {r.system for r in run.results} for run in runs)]
    if len(runs) < 2 or not shared:
        return None
    system = WORKERS_SYSTEM if WORKERS_SYSTEM in shared else shared[-1]
    ordered = sorted(runs, key=_worker_count)
    curves = [next((c for c in curves_of(run) if c.system == system), None) for run in ordered]
    there = [(run, curve) for run, curve in zip(ordered, curves, strict=True) if curve is not None]
    if not there:
        return None
    figure = canvas.sheet(3.7 + canvas.legend_height(len(there)), runs)
    by_step, by_time = figure.subplots(2, 1)
    markers = itertools.cycle("osD^v")
    strokes: list[dict[str, Any]] = [
        {"color": SEQUENCE[min(place, len(SEQUENCE) - 1)], "marker": next(markers), "label": _worker_words(one)}
        for place, (one, _) in enumerate(there)
    ]
    _losses(by_step, by_time, [curve for _, curve in there], strokes, Target.of(ordered[0].info), frame)
    by_step.set_title(f"{look(system).label}: loss by step, by workers")
    canvas.legend(figure, [Line2D([], [], **style) for style in strokes])
    return figure


def _worker_count(run: Run) -> int:
    return len(run.info.topology.get("regions") or []) * int(run.info.topology.get("workers_per_region") or 0)


def _worker_words(run: Run) -> str:
    regions, each = len(run.info.topology.get("regions") or []), run.info.topology.get("workers_per_region")
    return f"{regions} × {each} workers" if regions and each else run.name


def _losses(
    by_step: Axes,
    by_time: Axes,
    curves: list[Curve],
    strokes: list[dict[str, Any]],
    target: Target,
    frame: pd.DataFrame,
) -> None:
    kind = clock(frame["fabric"])
    ends = [float(curve.time_s[-1]) for curve in curves if curve.time_s[-1] > 0]
    unit, scale = time_unit(max(ends, default=1.0))
    for axes, against, divisor in ((by_step, "step", 1.0), (by_time, "time_s", scale)):
        for place, (curve, style) in enumerate(zip(curves, strokes, strict=True)):
            x = getattr(curve, against) / divisor
            canvas.band(axes, x, curve.smooth, curve.half, style["color"], curve.seeds)
            axes.plot(x, curve.smooth, markevery=canvas.marks(len(x), place), **style)
        limit_losses(axes, curves, target)
        axes.set_ylabel("training loss")
        axes.set_xlim(left=0)
        if target.loss is not None:
            axes.axhline(target.loss, color=canvas.INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    by_step.set_title("Loss by step")
    by_step.set_xlabel("step")
    by_time.set_title(f"Loss by {kind}")
    by_time.set_xlabel(f"{kind} ({unit})")
    if target.loss is not None:
        note: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "fontsize": 6.5}
        by_step.annotate(f"target {target.loss:g}", (0.0, target.loss), (2, 1.5), **note)
    if ends and max(ends) / min(ends) > LOG_TIME_RATIO:
        starts = [curve.time_s[np.isfinite(curve.smooth)] / scale for curve in curves]
        by_time.set_xscale("log")
        by_time.set_xlim(left=min((start[0] for start in starts if len(start)), default=None))
        by_time.xaxis.set_major_formatter(PLAIN)


def accuracy(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Test accuracy of each system's result against time, mean and interval over seeds."""
    drawn = {system: _accuracies(run, frame, system) for system in dict.fromkeys(frame["system"])}
    lines = {system: line for system, line in drawn.items() if line is not None}
    if not any(len(line) > 1 for line in lines.values()):
        return None
    figure = canvas.sheet(2.1 + canvas.legend_height(len(lines)), [run])
    axes = figure.subplots()
    unit, scale = time_unit(max(line["time_s"].max() for line in lines.values()))
    for system, line in lines.items():
        x, y, half = line["time_s"] / scale, 100 * line["accuracy"], 100 * line["half"]
        canvas.band(axes, x, y, half, look(system).color, int((frame["system"] == system).sum()))
        axes.plot(x, y, **canvas.stroke(system))
    target = Target.of(run.info)
    if target.accuracy is not None:
        axes.axhline(100 * target.accuracy, color=canvas.INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    kind = clock(frame["fabric"])
    ends = [line["time_s"].iloc[-1] for line in lines.values()]
    if max(ends) / max(min(ends), 1e-9) > LOG_TIME_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(PLAIN)
    else:
        axes.set_xlim(left=0)
    axes.set(xlabel=f"{kind} ({unit})", ylabel="test accuracy (%)")
    axes.set_title(f"Accuracy by {kind}")
    canvas.legend(figure, canvas.keys(lines))
    return figure


def _accuracies(run: Run, frame: pd.DataFrame, system: str) -> pd.DataFrame | None:
    """`time_s`, `accuracy` and `half` its interval, at the steps that all seeds of a system were tested at."""
    model = "quantized" if frame.loc[frame["system"] == system, "accuracy_quantized"].notna().all() else "full"
    seeds = [r.evaluations[r.evaluations["model"] == model] for r in run.results if r.system == system]
    length = min((len(tests) for tests in seeds), default=0)
    if not length:
        return None
    values = np.stack([tests["accuracy"].to_numpy()[:length] for tests in seeds])
    times_s = np.stack([tests["time_s"].to_numpy()[:length] for tests in seeds])
    half = np.nan_to_num(half_width(values))
    return pd.DataFrame({"time_s": times_s.mean(0), "accuracy": values.mean(0), "half": half})


def speedup(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Speedup over the baseline to the target, with interval, the paper's number beside it (WeightGrad, figure 5d)."""
    together = aggregate(frame)
    if not together["speedup_vs_baseline"].notna().any():
        return None
    systems = list(together["system"])
    stated = {
        figure.system: figure.value
        for figure in papers.fitting(run.info)
        if figure.quantity == "speedup" and figure.versus == BASELINE and figure.system in systems
    }
    figure = canvas.sheet(0.75 + 0.2 * len(systems) + (0.15 if stated else 0.0), [run])
    axes = figure.subplots()
    largest = _speedup_bars(axes, together, stated)
    axes.axvline(1.0, color=canvas.INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    known = together["speedup_vs_baseline"].dropna()
    if largest / known.min() > LOG_BAR_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(PLAIN)
        axes.set_xlim(known.min() / 2, largest * 3)
    else:
        axes.set_xlim(0, largest * 1.22)
    canvas.bar_labels(axes, systems)
    axes.set_title(f"Speedup to {Target.of(run.info)}")
    axes.set_xlabel("times as fast as the baseline")
    if stated:
        mark = Line2D([], [], ls="", marker="D", mfc="white", mec=canvas.INK, mew=0.9, label="in the paper")
        canvas.legend(figure, [mark])
    return figure


def _speedup_bars(axes: Axes, together: pd.DataFrame, stated: dict[str, float]) -> float:
    """Draw bars, intervals and the papers' marks; returns the longest of them."""
    largest = 1.0
    for place, row in enumerate(together.to_dict("records")):
        value, missing = row["speedup_vs_baseline"], is_missing(row["speedup_vs_baseline"])
        tip = 0.0 if missing else value
        axes.barh(place, tip, height=0.62, color=look(row["system"]).color, zorder=2)
        if not is_missing(row["speedup_vs_baseline_high"]):
            low, high = max(row["speedup_vs_baseline_low"], 0.0), row["speedup_vs_baseline_high"]
            axes.plot([low, high], [place, place], color=canvas.INK, lw=1.0, zorder=3)
            tip = max(tip, high)
        if row["system"] in stated:
            paper = stated[row["system"]]
            axes.plot(paper, place, "D", mfc="white", mec=canvas.INK, mew=0.9, ms=4.2, zorder=4)
            tip = max(tip, paper)
        words = times(value) if not missing else NOT_REACHED
        ink: dict[str, Any] = {"color": canvas.MUTED, "fontstyle": "italic"} if missing else {"color": canvas.INK}
        at = 1.0 if missing else tip  # right of the line at 1
        axes.annotate(words, (at, place), (4, 0), textcoords="offset points", va="center", fontsize=7, **ink)
        largest = max(largest, tip)
    return largest


def pareto(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Bytes on the WAN against test accuracy; the line joins the systems that no other beats in both."""
    together = aggregate(frame[frame["status"].isin(DONE)]).dropna(subset=["wan_bytes", "final_accuracy"])
    together = together[together["wan_bytes"] > 0]
    if len(together) < 2:
        return None
    return _pareto(run, together, named=True) or _pareto(run, together, named=False)


def _pareto(run: Run, together: pd.DataFrame, named: bool) -> Figure | None:
    """The figure with a name at each point, or None where there is no room for them; or with a legend."""
    if named and len(together) > NAMED_POINTS:
        return None
    figure = canvas.sheet(2.2 + (0.0 if named else canvas.legend_height(len(together))), [run])
    axes = figure.subplots()
    _front(axes, together)
    for row in together.to_dict("records"):
        x, y = row["wan_bytes"], 100 * row["final_accuracy"]
        if not is_missing(row["final_accuracy_high"]):
            low, high = 100 * row["final_accuracy_low"], 100 * row["final_accuracy_high"]
            axes.plot([x, x], [low, high], color=look(row["system"]).color, lw=0.9, zorder=2)
        axes.plot(x, y, zorder=3, **canvas.stroke(row["system"], linestyle="", markersize=5.5))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(0.18, 0.22)
    axes.set(xlabel="bytes on the WAN over the run", ylabel="test accuracy (%)")
    axes.set_title("Accuracy against WAN bytes (better: ↖)")
    if not named:
        canvas.legend(figure, canvas.keys(together["system"]))
    elif not _name(figure, axes, together):
        return None
    return figure


def _name(figure: Figure, axes: Axes, together: pd.DataFrame) -> bool:
    """A name at each point: above, below, right or left of it; False where one has no room that is free."""
    places = {
        (0, 5): ("center", "bottom"),
        (0, -5): ("center", "top"),
        (6, 0): ("left", "center"),
        (-6, 0): ("right", "center"),
    }
    figure.draw_without_rendering()  # so that pixels are known
    pixels = axes.transData.transform(together[["wan_bytes", "final_accuracy"]].to_numpy() * [1.0, 100.0])
    margin = 3.5 * figure.dpi / 72  # half a mark
    taken = [Bbox.from_extents(x - margin, y - margin, x + margin, y + margin) for x, y in pixels]
    for row in together.to_dict("records"):
        for offset, (ha, va) in places.items():
            text = axes.annotate(
                look(row["system"]).label, (row["wan_bytes"], 100 * row["final_accuracy"]), offset,
                textcoords="offset points", ha=ha, va=va, fontsize=7,
            )  # fmt: skip
            box = text.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if inside and not box.padded(figure.dpi / 72).count_overlaps(taken):
                taken.append(box)
                break
            text.remove()
        else:
            return False
    return True


def _front(axes: Axes, together: pd.DataFrame) -> None:
    best, front = -np.inf, []
    for row in together.sort_values("wan_bytes").to_dict("records"):
        if row["final_accuracy"] > best:
            best = row["final_accuracy"]
            front.append((row["wan_bytes"], 100 * best))
    axes.plot(*zip(*front, strict=True), color=canvas.RULE, lw=1.0, drawstyle="steps-post", zorder=1)
