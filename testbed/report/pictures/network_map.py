"""A profile as a matrix: tables on the terminal and a heat map; row = from, column = to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from testbed.report.pictures.style import INK, MAP, Sheet, drawing, save
from testbed.wan.profile import Link, Pair, Profile

ASSUMED = "*"  # behind a value that nobody measured
NONE = "-"  # where a matrix has no value: a region and itself
DARK = 0.6  # share of the colours' range above which they need white ink
GAP = 2  # blanks between the columns of a table


@dataclass(frozen=True)
class LinkValue:
    """A value of every pair: its key in the profile, its heading, and matplotlib's name for its colours."""

    key: str
    heading: str
    colors: str
    of: Callable[[Link], float]


GOODPUT = LinkValue("goodput_mbit", "Goodput, Mbit/s", "YlGnBu", lambda link: link.goodput_mbit)
RTT = LinkValue("rtt_ms", "Round trip, ms", "YlOrRd", lambda link: link.rtt_ms)
IMPAIRMENTS = (
    LinkValue("loss_percent", "Loss, % of the packets", "Reds", lambda link: link.loss_percent),
    LinkValue("jitter_ms", "Jitter, ± ms of the one-way delay", "Purples", lambda link: link.jitter_ms),
)


def lines(profile: Profile, value: LinkValue, width: int) -> list[str]:
    """The matrix of one value as text of at most `width` columns, in blocks of regions where it is wider."""
    cells = {pair: _cell(profile, value, pair) for pair in profile.pairs}
    return [f"{value.heading} (row: from, column: to)", *_matrix(profile.regions, cells, width)]


def spread_lines(profile: Profile, width: int) -> list[str]:
    """The 10th and 90th percentile of the goodput, for the pairs that have them, like `lines`."""
    cells = {pair: f"{short(spread.p10_mbit)}-{short(spread.p90_mbit)}" for pair, spread in profile.spread.items()}
    return ["Goodput, Mbit/s: 10th to 90th percentile", *_matrix(profile.regions, cells, width)]


def _matrix(regions: tuple[str, ...], cells: dict[Pair, str], width: int) -> list[str]:
    label = max(map(len, regions))
    widths = {dst: GAP + max(len(dst), *(len(cells.get((src, dst), NONE)) for src in regions)) for dst in regions}
    out: list[str] = []
    left = list(regions)
    while left:
        block, used = [left[0]], label + widths[left[0]]
        for dst in left[1:]:
            used += widths[dst]
            if used > width:
                break
            block.append(dst)
        left = left[len(block) :]
        out += ["", " " * label + "".join(dst.rjust(widths[dst]) for dst in block)]
        for src in regions:
            out.append(src.ljust(label) + "".join(cells.get((src, dst), NONE).rjust(widths[dst]) for dst in block))
    return out[1:]


def _cell(profile: Profile, value: LinkValue, pair: Pair) -> str:
    origin = profile.origins.get(pair)
    mark = ASSUMED if origin and value.key in origin.assumed else ""
    return short(value.of(profile.pairs[pair])) + mark


def short(value: float) -> str:
    """A number in at most three significant places, or all its whole ones: 0.2, 11.4, 99, 5007."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def draw(profile: Profile, path: Path) -> None:
    """Write the heat maps of goodput and round trip, side by side, as a PNG."""
    side = max(3.4, 0.5 * len(profile.regions))  # inches of one map
    with drawing(MAP):
        figure = Sheet(2 * side + 3.4, side + 1.9, MAP)
        for axes, value in zip(figure.subplots(1, 2), (GOODPUT, RTT), strict=True):
            _heat(axes, profile, value)
        lan = f"LAN of each host: {profile.lan.goodput_mbit:g} Mbit/s, {profile.lan.rtt_ms:g} ms"
        note = f"; {ASSUMED} assumed, not measured" if profile.assumed else ""
        figure.suptitle(f"{profile.name}: {profile.title}\n{lan}{note}", fontsize=10.5)
        save(figure, path)


def _heat(axes: Axes, profile: Profile, value: LinkValue) -> None:
    regions = profile.regions
    values = np.full((len(regions), len(regions)), np.nan)
    for (src, dst), link in profile.pairs.items():
        values[regions.index(src), regions.index(dst)] = value.of(link)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    norm = LogNorm(low, high) if 0 < low < high else Normalize(min(low, 0.0), max(2 * high, 1.0))
    colors = matplotlib.colormaps[value.colors].with_extremes(bad="#f2f2f2")
    axes.imshow(np.ma.masked_invalid(values), cmap=colors, norm=norm)
    for pair, link in profile.pairs.items():
        row, column = (regions.index(region) for region in pair)
        ink = "white" if norm(value.of(link)) > DARK else INK.text
        text = _cell(profile, value, pair)
        axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink)
    axes.set_title(value.heading)
    axes.set_ylabel("from")
    axes.set_xlabel("to")
    axes.set_xticks(range(len(regions)), regions, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(regions)), regions)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
