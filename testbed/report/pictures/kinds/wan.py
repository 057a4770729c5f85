"""Use of the WAN's links."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.info import RunInfo
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.summary import wan_only
from testbed.report.numbers.wording import clock
from testbed.report.pictures import parts
from testbed.report.pictures.registry import picture

MOST_STRIPS = 24  # rows of a picture of WAN use
STRIP_CELLS = 240  # along time
USE_COLORS = LinearSegmentedColormap.from_list("use", ["#f1f1ee", "#fdd49e", "#fc8d59", "#b30000"])


@picture("wan", order=6)
def wan(run: Run, frame: pd.DataFrame) -> Figure | None:
    """How much of each WAN link's rate was in use over time; white after the end.

    A strip per link, the busiest ones, of each system's first seed.
    """
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
    figure = parts.sheet(0.95 + 0.13 * sum(heights) + 0.2 * len(use), [run])
    panels = np.atleast_1d(figure.subplots(len(use), 1, sharex=True, height_ratios=heights))
    unit, scale = parts.time_unit(end_s)
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
