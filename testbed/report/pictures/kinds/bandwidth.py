"""Bandwidth of the pairs of regions."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.record.info import RunInfo, probes_of
from testbed.record.reader import Run
from testbed.report.numbers.wording import number
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import INK

LAN = "lan"
MOST_PAIRS = 12  # bars of bandwidth; of more pairs the slowest are drawn


@picture("bandwidth", order=7)
def bandwidth(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Goodput inside and between regions, as the profile states it.

    Marks are what the gate measured (WeightGrad, figure 3).
    """
    stated = run.info.network
    rates = _pair_rates(run.info)
    if not rates:
        return None
    shown = sorted(rates.items(), key=lambda item: -item[1])[-MOST_PAIRS:]
    if LAN in stated:
        shown.insert(0, (LAN, stated[LAN].goodput_mbit))
    figure = parts.sheet(0.7 + 0.19 * len(shown) + 0.15, [run])
    axes = figure.subplots()
    measured = _gate_rates(run.info)
    top = max(rate for _, rate in shown)
    for place, (pair, rate) in enumerate(shown):
        axes.barh(place, rate, height=0.62, color="#777777" if pair == LAN else "#0072B2", zorder=2)
        ratio = "" if pair == LAN or LAN not in stated else f"  LAN/{number(stated[LAN].goodput_mbit / rate)}"
        parts.beside(axes, f"{number(rate)}{ratio}", (rate, place), 5)
        for value in measured.get(pair, ()):
            axes.plot(value, place, "|", color=INK.text, ms=7, mew=1.2, zorder=3)
    parts.bar_labels(axes, ["inside a region" if p == LAN else p.replace(">", " ⇄ ") for p, _ in shown])
    axes.set_xlim(0, top * 1.2)
    axes.set_xlabel("goodput (Mbit/s)")
    some = "" if len(rates) <= MOST_PAIRS else f": {MOST_PAIRS} slowest of {len(rates)} pairs"
    axes.set_title(f"Bandwidth{some}")
    if measured:
        mark = Line2D([], [], ls="", marker="|", color=INK.text, ms=7, mew=1.2, label="measured before the run")
        parts.legend(figure, [mark])
    return figure


def _pair_rates(info: RunInfo) -> dict[str, float]:
    """The goodput of each pair of regions, "a>b" with a before b, in Mbit/s: the mean of its directions."""
    found: dict[str, list[float]] = {}
    for link, stated in info.network.items():
        if link != LAN:
            found.setdefault(_pair(link), []).append(stated.goodput_mbit)
    return {pair: sum(rates) / len(rates) for pair, rates in found.items()}


def _pair(link: str) -> str:
    return ">".join(sorted(link.split(">")))


def _gate_rates(info: RunInfo) -> dict[str, list[float]]:
    """What the gate measured, in Mbit/s, by pair of regions, and for the LAN."""
    found: dict[str, list[float]] = {}
    for probe in probes_of(info.gate):
        if probe.section == "goodput" and probe.measured:
            name = LAN if "/" in probe.name else _pair(probe.name)
            found.setdefault(name, []).append(probe.measured)
    return found
