"""MQGrad's bits."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture


@picture("bits", order=9)
def bits(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Bits per gradient value that the policy chose.

    MQGrad's, a line per seed.
    """
    chosen = [(result, result.events) for result in run.results]
    chosen = [(result, events[events["event"] == "bits"]) for result, events in chosen]
    chosen = [(result, events) for result, events in chosen if len(events)]
    if not chosen:
        return None
    figure = parts.sheet(1.9, [run])
    axes = figure.subplots()
    averages = []
    for place, (result, events) in enumerate(chosen):
        style = parts.stroke(result.system, marker="", linestyle="-", linewidth=1.4 if place == 0 else 0.7)
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
