"""Accuracy against bytes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from testbed.record.info import DONE
from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target
from testbed.report.numbers.summary import aggregate, reached_by_any
from testbed.report.numbers.wording import is_missing
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK

NAMED_POINTS = 8  # systems up to which a point has its name beside it


@picture("pareto", order=4)
def pareto(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Accuracy against WAN bytes, where the target was reached; the line joins systems that none beats in both."""
    if Target.of(run.info).stated and not reached_by_any(frame):
        return None
    together = aggregate(frame[frame["status"].isin(DONE)]).dropna(subset=["wan_bytes", "final_accuracy"])
    together = together[together["wan_bytes"] > 0]
    if len(together) < 2:
        return None
    return _pareto(run, together, named=True) or _pareto(run, together, named=False)


def _pareto(run: Run, together: pd.DataFrame, named: bool) -> Figure | None:
    """The figure with a name at each point, or None where there is no room for them; or with a legend."""
    if named and len(together) > NAMED_POINTS:
        return None
    figure = parts.sheet(2.2, [run])
    axes = figure.subplots()
    _front(axes, together)
    for row in together.to_dict("records"):
        x, y = row["wan_bytes"], 100 * row["final_accuracy"]
        if not is_missing(row["final_accuracy_high"]):
            low, high = 100 * row["final_accuracy_low"], 100 * row["final_accuracy_high"]
            axes.plot([x, x], [low, high], color=look(row["system"]).color, lw=0.9, zorder=2)
        axes.plot(x, y, zorder=3, **parts.stroke(row["system"], linestyle="", markersize=5.5))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(0.18, 0.22)
    axes.set(xlabel="bytes on the WAN over the run", ylabel="test accuracy (%)")
    axes.set_title("Accuracy against WAN bytes (better: ↖)")
    if not named:
        parts.legend(figure, parts.keys(together["system"]))
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
    axes.plot(*zip(*front, strict=True), color=INK.rule, lw=1.0, drawstyle="steps-post", zorder=1)
