"""Where a step's time goes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.columns import SPENT_HEADS, recorded, with_rest
from testbed.report.numbers.summary import aggregate
from testbed.report.numbers.wording import clock, duration
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture

PARTS: dict[str, tuple[str, str, str]] = {  # of a step's time: words, colour, hatch
    "compute": (SPENT_HEADS["compute"], "#4477AA", ""),
    "codec": (SPENT_HEADS["codec"], "#66CCEE", "////"),
    "lan": (SPENT_HEADS["lan"], "#CCBB44", ""),
    "wan": (SPENT_HEADS["wan"], "#EE6677", "...."),
    "waiting": (SPENT_HEADS["waiting"], "#BBBBBB", ""),
    "rest": ("messages and waiting", "#DDCCCC", "...."),
}


@picture("time", order=5)
def time(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Where the time of a step went, as far as it was recorded."""
    measured = with_rest(frame[frame["mean_step_s"].notna()])
    spent = [*recorded(measured)]
    if not spent:
        return None
    spent = spent if "waiting" in spent else [*spent, "rest"]
    metrics = [f"mean_{name}_s" for name in spent]
    together = aggregate(measured, metrics=[*metrics, "mean_step_s"]).fillna(0.0)
    figure = parts.sheet(0.75 + 0.2 * len(together), [run])
    axes = figure.subplots()
    left = np.zeros(len(together))
    for name, metric in zip(spent, metrics, strict=True):
        _, color, hatch = PARTS[name]
        widths = together[metric].to_numpy()
        axes.barh(
            range(len(together)), widths, left=left, height=0.62, color=color, hatch=hatch, ec="white", lw=0.4, zorder=2
        )
        left += widths
    for place, value in enumerate(together["mean_step_s"]):
        parts.beside(axes, duration(value), (left[place], place))
    parts.bar_labels(axes, [look(system).label for system in together["system"]])
    axes.set_xlim(0, max(left.max(), 1e-9) * 1.2)
    axes.set_xlabel(f"{clock(frame['fabric'])} of a step (s)")
    axes.set_title("Where a step's time goes")
    handles = [Patch(fc=PARTS[n][1], hatch=PARTS[n][2], ec="white", lw=0.4, label=PARTS[n][0]) for n in spent]
    parts.legend(figure, handles)
    return figure
