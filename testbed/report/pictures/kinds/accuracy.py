"""Test accuracy, or whatever else the data set's main metric is, by time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.asked import Target, reported
from testbed.report.numbers.curves import results_of
from testbed.report.numbers.interval import half_width
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK


@picture("accuracy", order=3)
def accuracy(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Test accuracy of the resulting model while it trained.

    Mean and interval over seeds. Where the data set's main metric is another, that one.
    """
    metric = run.info.metric
    factor, ylabel = (100, f"test {metric.label} (%)") if metric.unit == "fraction" else (1, f"test {metric.label}")
    seeds = {system: results_of(run, system) for system in dict.fromkeys(frame["system"])}
    drawn = {system: _tests(run, results) for system, results in seeds.items()}
    lines = {system: line for system, line in drawn.items() if line is not None}
    if not any(len(line) > 1 for line in lines.values()):
        return None
    figure = parts.sheet(2.1, [run])
    axes = figure.subplots()
    unit, scale = parts.time_unit(max(line["time_s"].max() for line in lines.values()))
    for system, line in lines.items():
        x, y, half = line["time_s"] / scale, factor * line["value"], factor * line["half"]
        parts.band(axes, x, y, half, look(system).color, len(seeds[system]))
        axes.plot(x, y, **parts.stroke(system))
    aim = Target.of(run.info).of_metric(metric.name)
    if aim is not None:
        axes.axhline(factor * aim, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
    kind = clock(frame["fabric"])
    ends = [line["time_s"].iloc[-1] for line in lines.values()]
    if max(ends) / max(min(ends), 1e-9) > parts.LOG_TIME_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(parts.PLAIN)
    else:
        axes.set_xlim(left=0)
    axes.set(xlabel=f"{kind} ({unit})", ylabel=ylabel)
    axes.set_title(f"{metric.label[:1].upper()}{metric.label[1:]} by {kind}")
    parts.legend(figure, parts.keys(lines))
    return figure


def _tests(run: Run, results: Sequence[Result]) -> pd.DataFrame | None:
    """`time_s`, `value` and `half` its interval, at the steps that all these seeds of a system were tested at."""
    if all(len(r.probes) for r in results):
        seeds = [r.probes for r in results]
    else:
        model = reported(set.intersection(*(set(r.tests["model"]) for r in results)), Target.of(run.info).model)
        seeds = [r.tests[r.tests["model"] == model] for r in results]
    length = min((len(tests) for tests in seeds), default=0)
    if not length or any(run.info.metric.name not in tests for tests in seeds):
        return None
    values = np.stack([tests[run.info.metric.name].to_numpy()[:length] for tests in seeds])
    times_s = np.stack([tests["time_s"].to_numpy()[:length] for tests in seeds])
    half = np.nan_to_num(half_width(values))
    return pd.DataFrame({"time_s": times_s.mean(0), "value": values.mean(0), "half": half})
