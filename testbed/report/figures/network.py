"""Figures of the network: its bandwidth, how a run used it, where a step's time went."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.info import RunInfo
from testbed.record.reader import Result, Run
from testbed.report.columns import SPENT_HEADS, recorded, with_rest
from testbed.report.figures import canvas
from testbed.report.looks import look
from testbed.report.plots import time_unit
from testbed.report.summary import aggregate, wan_only
from testbed.report.wording import clock, duration, number

LAN = "lan"
MOST_PAIRS = 12  # bars of bandwidth; of more pairs the slowest are drawn
MOST_STRIPS = 24  # rows of a picture of WAN use
STRIP_CELLS = 240  # along time
USE_COLORS = LinearSegmentedColormap.from_list("use", ["#f1f1ee", "#fdd49e", "#fc8d59", "#b30000"])
PARTS: dict[str, tuple[str, str, str]] = {  # of a step's time: words, colour, hatch
    "compute": (SPENT_HEADS["compute"], "#4477AA", ""),
    "codec": (SPENT_HEADS["codec"], "#66CCEE", "////"),
    "lan": (SPENT_HEADS["lan"], "#CCBB44", ""),
    "wan": (SPENT_HEADS["wan"], "#EE6677", "...."),
    "waiting": (SPENT_HEADS["waiting"], "#BBBBBB", ""),
    "rest": ("messages and waiting", "#DDCCCC", "...."),
}


def bandwidth(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Goodput inside and between regions, as the profile states it and the gate measured it (WeightGrad, figure 3)."""
    stated = run.info.network
    rates = _pair_rates(run.info)
    if not rates:
        return None
    shown = sorted(rates.items(), key=lambda item: -item[1])[-MOST_PAIRS:]
    if LAN in stated:
        shown.insert(0, (LAN, stated[LAN].goodput_mbit))
    figure = canvas.sheet(0.7 + 0.19 * len(shown) + 0.15, [run])
    axes = figure.subplots()
    measured = _gate_rates(run.info)
    top = max(rate for _, rate in shown)
    for place, (pair, rate) in enumerate(shown):
        axes.barh(place, rate, height=0.62, color="#777777" if pair == LAN else "#0072B2", zorder=2)
        ratio = "" if pair == LAN or LAN not in stated else f"  LAN/{number(stated[LAN].goodput_mbit / rate)}"
        axes.annotate(
            f"{number(rate)}{ratio}", (rate, place), (5, 0), textcoords="offset points", va="center", fontsize=7
        )
        for value in measured.get(pair, ()):
            axes.plot(value, place, "|", color=canvas.INK, ms=7, mew=1.2, zorder=3)
    axes.set_yticks(range(len(shown)), ["inside a region" if p == LAN else p.replace(">", " ⇄ ") for p, _ in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, top * 1.2)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("goodput (Mbit/s)")
    some = "" if len(rates) <= MOST_PAIRS else f": {MOST_PAIRS} slowest of {len(rates)} pairs"
    axes.set_title(f"Bandwidth{some}")
    if measured:
        mark = Line2D([], [], ls="", marker="|", color=canvas.INK, ms=7, mew=1.2, label="measured before the run")
        canvas.legend(figure, [mark])
    return figure


def _pair_rates(info: RunInfo) -> dict[str, float]:
    """The goodput of each pair of regions, "a>b" with a before b, in Mbit/s: the mean of its directions."""
    found: dict[str, list[float]] = {}
    for link, figures in info.network.items():
        if link != LAN:
            found.setdefault(_pair(link), []).append(figures.goodput_mbit)
    return {pair: sum(rates) / len(rates) for pair, rates in found.items()}


def _pair(link: str) -> str:
    return ">".join(sorted(link.split(">")))


def _gate_rates(info: RunInfo) -> dict[str, list[float]]:
    """What the gate measured, in Mbit/s, by pair of regions, and for the LAN."""
    found: dict[str, list[float]] = {}
    for figure in info.gate.get("figures") or ():
        if figure.get("section") == "goodput" and figure.get("measured"):
            name = LAN if "/" in figure["name"] else _pair(figure["name"])
            found.setdefault(name, []).append(figure["measured"])
    return found


def wan(run: Run, frame: pd.DataFrame) -> Figure | None:
    """How much of its WAN links' rates each system used over time: a strip per link, the busiest ones, first seeds."""
    firsts: dict[str, tuple[Result, list[str]]] = {}
    for result in run.results:
        if result.system not in firsts and (links := _busiest(result, run.info, max(1, MOST_STRIPS // _systems(run)))):
            firsts[result.system] = result, links
    if not firsts:
        return None
    end_s = max(float(result.links["second"].max()) + 1 for result, _ in firsts.values())
    use = {
        system: np.stack([_use(result, link, run.info.network[link].goodput_mbit, end_s) for link in links])
        for system, (result, links) in firsts.items()
    }
    top = max(10.0, 10 * np.ceil(max(np.nanmax(strips) for strips in use.values()) / 10))  # percent, of the colours
    heights = [len(strips) for strips in use.values()]
    figure = canvas.sheet(0.95 + 0.13 * sum(heights) + 0.2 * len(use), [run])
    panels = np.atleast_1d(figure.subplots(len(use), 1, sharex=True, height_ratios=heights))
    unit, scale = time_unit(end_s)
    for axes, (system, strips) in zip(panels, use.items(), strict=True):
        image = axes.imshow(
            strips, aspect="auto", cmap=USE_COLORS, vmin=0, vmax=top, interpolation="nearest",
            extent=(0, end_s / scale, len(strips) - 0.5, -0.5),
        )  # fmt: skip
        axes.set_title(look(system).label, fontsize=7.5, color=look(system).color, pad=2)
        axes.set_yticks(range(len(strips)), [link.replace(">", " → ") for link in firsts[system][1]], fontsize=6)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(axis="both", length=0)
    panels[-1].set_xlabel(f"{clock(frame['fabric'])} ({unit})")
    bar = figure.colorbar(image, ax=list(panels), location="bottom", aspect=40, fraction=0.06, pad=0.02)
    bar.set_label("use of the link's rate (%)")
    return figure


def _systems(run: Run) -> int:
    return len({result.system for result in run.results})


def _busiest(result: Result, info: RunInfo, most: int) -> list[str]:
    """The WAN links of known rate that carried most, in the order of their names."""
    sizes = {link: size for link, size in wan_only(result.link_bytes).items() if size and link in info.network}
    return sorted(sorted(sizes, key=lambda link: -sizes[link])[:most])


def _use(result: Result, link: str, goodput_mbit: float, end_s: float) -> np.ndarray:
    """Percent of a link's rate used, in STRIP_CELLS stretches of time (fewer where a stretch would be under 1 s)."""
    of_link = result.links[result.links["link"] == link]
    per_second = np.zeros(int(end_s))
    per_second[of_link["second"].to_numpy()] = of_link["wire_bytes"].to_numpy() * 8e-6 * PAYLOAD_PER_WIRE
    cells = min(STRIP_CELLS, len(per_second))
    edges = np.linspace(0, len(per_second), cells + 1).astype(int)
    shares = 100 * np.add.reduceat(per_second, edges[:-1]) / np.diff(edges) / goodput_mbit
    shares[edges[:-1] > of_link["second"].max()] = np.nan  # it had ended
    return shares


def time(run: Run, frame: pd.DataFrame) -> Figure | None:
    """Where a step's time went, as far as it was recorded."""
    measured = with_rest(frame[frame["mean_step_s"].notna()])
    parts = [*recorded(measured)]
    if not parts:
        return None
    parts = parts if "waiting" in parts else [*parts, "rest"]
    metrics = [f"mean_{name}_s" for name in parts]
    together = aggregate(measured, metrics=[*metrics, "mean_step_s"]).fillna(0.0)
    figure = canvas.sheet(0.75 + 0.2 * len(together) + canvas.legend_height(len(parts)), [run])
    axes = figure.subplots()
    left = np.zeros(len(together))
    for name, metric in zip(parts, metrics, strict=True):
        _, color, hatch = PARTS[name]
        widths = together[metric].to_numpy()
        axes.barh(
            range(len(together)), widths, left=left, height=0.62, color=color, hatch=hatch, ec="white", lw=0.4, zorder=2
        )
        left += widths
    for place, value in enumerate(together["mean_step_s"]):
        axes.annotate(
            duration(value), (left[place], place), (4, 0), textcoords="offset points", va="center", fontsize=7
        )
    canvas.bar_labels(axes, list(together["system"]))
    axes.set_xlim(0, max(left.max(), 1e-9) * 1.2)
    axes.set_xlabel(f"{clock(frame['fabric'])} of a step (s)")
    axes.set_title("Where a step's time goes")
    canvas.legend(
        figure, [Patch(fc=PARTS[n][1], hatch=PARTS[n][2], ec="white", lw=0.4, label=PARTS[n][0]) for n in parts]
    )
    return figure
