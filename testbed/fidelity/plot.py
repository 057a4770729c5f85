"""`fidelity.png`: nominal against measured, with the room that each bound leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from testbed.fidelity.against import DELIVERY
from testbed.fidelity.goodput import GOODPUT
from testbed.fidelity.measure import RTT_MEDIAN, RTT_P95
from testbed.fidelity.messages import MESSAGE
from testbed.fidelity.values import Bound, Value
from testbed.report.pictures.style import Sheet, drawing, save

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = ("o", "x", "^", "+")
MISSED = "#B00020"
PLAIN = StrMethodFormatter("{x:g}")
WIDE = 1000.0  # a log axis that spans more has a label only at powers of ten


def draw(path: Path, figures: Sequence[Value], title: str) -> None:
    """Four panels: goodput, message times and round trips against nominal with their bounds, and the trace."""
    with _picture(path, f"Emulated network against profile {title}", figures, (11.0, 8.0)) as canvas:
        panels = canvas.subplots(2, 2)
        _goodput_panel(panels[0, 0], figures)
        _message_panel(panels[0, 1], figures)
        _round_trip_panel(panels[1, 0], figures)
        _trace_panel(panels[1, 1], figures)


def draw_against(path: Path, figures: Sequence[Value], title: str) -> None:
    """Every message's delivery time on the virtual and on the emulated network."""
    with _picture(path, f"Virtual against emulated network, {title}", figures, (8.0, 6.0)) as canvas:
        axes = canvas.subplots()
        axes.set(xlabel="delivery, virtual (ms)", ylabel="emulated - virtual (ms)", xscale="log")
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_formatter(PLAIN)
        nominal: list[float] = []
        for color, marker, name in zip(COLORS, MARKERS, ("WAN", "LAN"), strict=False):
            for figure in figures:
                if figure.name == name and "virtual_ms" in figure.detail:
                    here, there = figure.detail["virtual_ms"], figure.detail["emulated_ms"]
                    off = [b - a for a, b in zip(here, there, strict=True)]
                    axes.plot(here, off, color=color, marker=marker, linestyle="none", markersize=4, label=name)
                    nominal += here
        _band(axes, nominal, DELIVERY, as_percent=False)
        axes.legend(fontsize=8, title=f"{len(nominal)} messages")


@contextmanager
def _picture(path: Path, title: str, figures: Sequence[Value], size: tuple[float, float]) -> Iterator[Canvas]:
    with drawing():
        canvas = Sheet(*size)
        missed = sum(not figure.ok for figure in figures)
        verdict = f"all {len(figures)} figures within bounds" if not missed else f"{missed} of {len(figures)} missed"
        canvas.suptitle(f"{title}: {verdict}", x=0.01, ha="left", color=MISSED if missed else "black")
        yield canvas
        save(canvas, path)


def _scatter(axes: Axes, figures: Sequence[Value], prefix: str, off: Callable[[Value], float]) -> list[float]:
    """Points of the sections that begin so; returns the nominal values."""
    chosen = [figure for figure in figures if figure.section.startswith(prefix) and figure.measured is not None]
    sections = list(dict.fromkeys(figure.section for figure in chosen))
    for number_, section in enumerate(sections):
        points = [(figure.asked, off(figure)) for figure in chosen if figure.section == section]
        label = section.removeprefix(prefix).strip(", ") or section
        look: dict[str, Any] = {"color": COLORS[number_ % 4], "marker": MARKERS[number_ % 4]}
        axes.plot(*zip(*points, strict=True), linestyle="none", markersize=5, alpha=0.8, label=label, **look)
    missed = [(figure.asked, off(figure)) for figure in chosen if not figure.ok]
    if missed:
        ring: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgecolor": MISSED}
        axes.plot(*zip(*missed, strict=True), linestyle="none", label="misses its bound", **ring)
    if chosen:
        axes.legend(fontsize=8, loc="lower right", ncols=2)
    else:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
    return [figure.asked for figure in chosen]


def _band(axes: Axes, nominal: Sequence[float], bound: Bound, as_percent: bool) -> None:
    """The room that a bound leaves, over the range of the nominal values."""
    if not nominal:
        return
    low, high = min(nominal) / 1.3, max(nominal) * 1.3
    across = [low * (high / low) ** (step / 100) for step in range(101)]
    room = [bound.room(x) * (100 / x if as_percent else 1.0) for x in across]
    if axes.get_xscale() == "log":
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < WIDE * low else (1.0,)))
        axes.xaxis.set_major_formatter(PLAIN)
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.fill_between(across, [-y for y in room], room, color="#009E73", alpha=0.10, linewidth=0)
    axes.set_xlim(low, high)
    axes.axhline(0, color="#888888", linewidth=0.8)


def _percent(figure: Value) -> float:
    assert figure.measured is not None
    return 100 * (figure.measured / figure.asked - 1)


def _difference(figure: Value) -> float:
    assert figure.measured is not None
    return figure.measured - figure.asked


def _goodput_panel(axes: Axes, figures: Sequence[Value]) -> None:
    axes.set(title="Goodput of every pair", xlabel="nominal (Mbit/s)", ylabel="measured - nominal (%)", xscale="log")
    _band(axes, _scatter(axes, figures, "goodput", _percent), GOODPUT, as_percent=True)


def _message_panel(axes: Axes, figures: Sequence[Value]) -> None:
    axes.set(title="Time of single messages", xlabel="size / rate + delay (ms)", xscale="log")
    axes.set_ylabel("measured - nominal (ms)")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.yaxis.set_major_formatter(PLAIN)
    _band(axes, _scatter(axes, figures, "message", _difference), MESSAGE, as_percent=False)


def _round_trip_panel(axes: Axes, figures: Sequence[Value]) -> None:
    axes.set(title="Round trips", xlabel="nominal (ms)", ylabel="measured - nominal (ms)")
    nominal = _scatter(axes, figures, "round trip", _difference)
    for bound in (RTT_MEDIAN, RTT_P95):
        _band(axes, nominal, bound, as_percent=False)


def _trace_panel(axes: Axes, figures: Sequence[Value]) -> None:
    axes.set(title="Rates changed once a second", xlabel="second", ylabel="goodput (Mbit/s)")
    traces = [figure for figure in figures if "asked_mbit" in figure.detail][:4]
    for color, figure in zip(COLORS, traces, strict=False):
        asked, measured = figure.detail["asked_mbit"], figure.detail["measured_mbit"]
        axes.stairs(asked, range(len(asked) + 1), color=color, linewidth=1.2, label=f"{figure.name}: line asked")
        middle = [second + 0.5 for second in range(len(measured))]
        axes.plot(middle, measured, color=color, marker="o", linestyle="none", markersize=5)
    if traces:
        axes.plot([], [], color="black", marker="o", linestyle="none", label="points measured")
        axes.legend(fontsize=8, loc="best")
        axes.set_ylim(0, 1.6 * max(max(figure.detail["asked_mbit"]) for figure in traces))
    else:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
