"""Loss by step and by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.record.reader import Run
from testbed.report.numbers.asked import Target
from testbed.report.numbers.curves import Curve, curves_of
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK


@picture("loss", order=1)
def loss(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Training loss against steps and against time, running mean over the target's window.

    One line per system (WeightGrad, figures 5a to 5c).
    """
    curves = curves_of(run)
    if not curves:
        return None
    figure = parts.sheet(3.7, [run])
    by_step, by_time = figure.subplots(2, 1)
    losses(by_step, by_time, curves, [parts.stroke(curve.system) for curve in curves], Target.of(run.info), frame)
    parts.legend(figure, parts.keys(curve.system for curve in curves))
    return figure


def losses(
    by_step: Axes,
    by_time: Axes,
    curves: Sequence[Curve],
    strokes: Sequence[dict[str, Any]],
    target: Target,
    frame: pd.DataFrame,
) -> None:
    """Fill two panels with the same curves, each drawn with its stroke."""
    kind = clock(frame["fabric"])
    unit, scale = parts.unit_of(curves)
    for axes, against, divisor in ((by_step, "step", 1.0), (by_time, "time_s", scale)):
        for place, (curve, style) in enumerate(zip(curves, strokes, strict=True)):
            x = getattr(curve, against) / divisor
            parts.band(axes, x, curve.smooth, curve.half, style["color"], curve.seeds)
            axes.plot(x, curve.smooth, markevery=parts.marks(len(x), place), **style)
        parts.fit_losses(axes, curves, target)
        axes.set_ylabel("training loss")
        axes.set_xlim(left=0)
        if target.loss is not None:
            axes.axhline(target.loss, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
    by_step.set_title("Loss by step")
    by_step.set_xlabel("step")
    by_time.set_title(f"Loss by {kind}")
    by_time.set_xlabel(f"{kind} ({unit})")
    if target.loss is not None:
        note: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "fontsize": 6.5}
        by_step.annotate(f"target {target.loss:g}", (0.0, target.loss), (2, 1.5), **note)
    parts.fit_times(by_time, curves, scale)
