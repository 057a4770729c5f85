"""The workload's main metric by time and by bytes: what each second and each byte across the WAN buys."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from testbed.record.reader import Result, Run
from testbed.report.numbers.asked import Target
from testbed.report.numbers.curves import results_of
from testbed.report.numbers.summary import wan_only
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK, WIDE, Sheet

WIDTH, HEIGHT = 9.0, 3.4  # inches
LEGEND = 5  # systems in a line of it


@picture("metric", wide=True)
def metric(run: Run, frame: pd.DataFrame) -> Figure | None:
    """The main metric (accuracy, bits per character, ...) of the resulting model by time and by WAN bytes.

    Means over a system's seeds, of the tests made as it trained; a system that has sent nothing yet is in no place on
    the axis of bytes.
    """
    lines = {system: _mean(run, system) for system in dict.fromkeys(frame["system"])}
    lines = {system: line for system, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    figure = Sheet(WIDTH, HEIGHT, WIDE)
    by_time, by_bytes = figure.subplots(1, 2, sharey=True)
    factor, unit = (100.0, " (%)") if run.info.metric.unit == "fraction" else (1.0, "")
    time, scale = parts.time_unit(max(line["time_s"].max() for line in lines.values()))
    for number, (system, line) in enumerate(lines.items()):
        style = parts.stroke(system, markevery=parts.marks(len(line), number), lw=1.2, markersize=4.5)
        by_time.plot(line["time_s"] / scale, factor * line["value"], **style)
        sent = line[line["wan_bytes"] > 0]
        by_bytes.plot(sent["wan_bytes"], factor * sent["value"], **style)
    aim = Target.of(run.info).of_metric(run.info.metric.name)
    for axes in (by_time, by_bytes):
        axes.set_xscale("log")
        if aim is not None:
            axes.axhline(factor * aim, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
    by_time.xaxis.set_major_formatter(parts.PLAIN)
    _bytes(by_bytes)
    label = run.info.metric.label
    of_what = "sample of test examples" + (", mean over seeds" if frame["seed"].nunique() > 1 else "")
    by_time.set(xlabel=f"{clock(frame['fabric'])} ({time})", ylabel=f"{label}{unit}\n{of_what}")
    by_time.set_title(f"{label[:1].upper()}{label[1:]} by time")
    by_bytes.set_title(f"{label[:1].upper()}{label[1:]} by bytes")
    if run.info.data.stand_in:
        figure.suptitle("STAND-IN DATA", fontsize=7, fontweight="bold", color=INK.warning, ha="right", x=0.99)
    parts.legend(figure, parts.keys(lines), LEGEND)
    return figure


def _mean(run: Run, system: str) -> pd.DataFrame:
    """The mean of a system's seeds (`results_of`) with tests, at each step at which all have one; see `_line`."""
    lines = [_line(result, run.info.metric.name) for result in results_of(run, system)]
    if not lines:
        return pd.DataFrame()
    by_step = pd.concat(lines).groupby("step")
    return by_step.mean()[by_step.size() == sum(len(line) > 0 for line in lines)]


def _line(result: Result, name: str) -> pd.DataFrame:
    """`step`, `time_s`, `value` and `wan_bytes` so far, at each test but that before the first step."""
    tests = result.probes[result.probes["step"] > 0]
    if name not in tests:
        return pd.DataFrame({"step": [], "time_s": [], "value": [], "wan_bytes": []})
    links = list(wan_only(result.link_bytes))
    sent = [sum(result.link_bytes_until(at_s, links).values()) for at_s in tests["time_s"]]
    columns = {"step": tests["step"], "time_s": tests["time_s"], "value": tests[name]}
    return pd.DataFrame({**columns, "wan_bytes": np.array(sent, float)})


def _bytes(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))
    axes.xaxis.set_major_locator(LogLocator(numticks=8))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bytes on the WAN, headers included")
