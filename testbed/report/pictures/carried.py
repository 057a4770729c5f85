"""The picture of a program on the emulated WAN: what each link could carry, and what it did, second by second."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from testbed.report.numbers.carried import Carried
from testbed.report.pictures import parts
from testbed.report.pictures.style import INK, WIDE, Sheet, drawing, settle

MOST_LINKS = 12  # panels; of more links those that carried most
MOST_LABELS = 12  # marks whose text is written; of more there are only the lines
LABEL = 24  # characters
CAPACITY, SENT, CUT = "#DCE3EC", "#0072B2", INK.warning


def draw(carried: Carried) -> Sheet | None:
    """A panel a WAN link, marks across all of them; None where no link carried anything."""
    used = {link: nbytes for link, nbytes in carried.info.wan_bytes.items() if nbytes}
    shown = [link for link in carried.info.network if link in sorted(used, key=lambda each: -used[each])[:MOST_LINKS]]
    if not shown:
        return None
    with drawing(WIDE):
        figure = Sheet(9.0, 1.3 + 1.25 * len(shown), WIDE)
        panels = np.atleast_1d(figure.subplots(len(shown), 1, sharex=True))
        end_s = len(carried.mbit(shown[0]))
        unit, scale = parts.time_unit(end_s)
        for axes, link in zip(panels, shown, strict=True):
            _panel(axes, carried, link, scale)
        _marks(list(panels), carried, scale)
        panels[-1].set_xlim(0, end_s / scale)
        panels[-1].set_xlabel(f"time ({unit})")
        some = f", {len(shown)} busiest of {len(used)} links" if len(used) > len(shown) else ""
        figure.suptitle(f"{carried.info.title} on {carried.info.profile}{some}", ha="left", x=0.01)
        parts.legend(figure, _legend(carried), 4)
        settle(figure)
    return figure


def _panel(axes: Axes, carried: Carried, link: str, scale: float) -> None:
    """The rate as an area, what crossed as a line within it, cuts as bands."""
    mbit, (times, rate) = carried.mbit(link), carried.course(link)
    edges = np.arange(len(mbit) + 1) / scale
    axes.stairs(rate, np.append(times, max(times[-1], len(mbit))) / scale, fill=True, color=CAPACITY, lw=0, zorder=1)
    axes.stairs(mbit, edges, fill=True, color=SENT, alpha=0.35, lw=0, zorder=2)
    axes.stairs(mbit, edges, color=SENT, lw=1.1, zorder=3)
    for begin_s, end_s in carried.spans(link):
        axes.axvspan(begin_s / scale, end_s / scale, color=CUT, alpha=0.15, lw=0, zorder=0)
    axes.set_title(link.replace(">", " → "), fontsize=9, loc="left", pad=2)
    axes.set_ylabel("Mbit/s")
    axes.set_ylim(0, 1.1 * max(float(rate.max()), float(mbit.max()), 1e-9))


def _marks(panels: list[Axes], carried: Carried, scale: float) -> None:
    labelled = len(carried.marks) <= MOST_LABELS
    for mark in carried.marks:
        for axes in panels:
            axes.axvline(mark.time_s / scale, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=4)
        if labelled:
            text = mark.text if len(mark.text) <= LABEL else mark.text[: LABEL - 1] + "…"
            panels[0].annotate(
                text,
                (mark.time_s / scale, 0.96),
                (2, 0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=7,
                va="top",
                rotation=90,
                zorder=5,
            )


def _legend(carried: Carried) -> list[Artist]:
    handles: list[Artist] = [
        Patch(facecolor=CAPACITY, label="what it can carry"),
        Patch(facecolor=SENT, alpha=0.5, label="goodput"),
    ]
    if carried.cuts:
        handles.append(Patch(facecolor=CUT, alpha=0.15, label="cut"))
    if carried.marks:
        handles.append(Line2D([], [], color=INK.text, lw=0.8, ls=parts.DASHES, label="mark"))
    return handles
