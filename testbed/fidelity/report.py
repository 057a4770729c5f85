"""`fidelity.json` and `fidelity.png`: what was measured of a profile's network, against what it says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from rich.console import Console
from rich.table import Table

from testbed.fidelity.figures import Bound, Figure, number
from testbed.fidelity.measure import GOODPUT, MESSAGE, RTT_MEDIAN, RTT_P95, Result
from testbed.record.files import replacing, write_whole
from testbed.record.info import environment
from testbed.report.plots import DPI, STYLE

JSON_NAME, PLOT_NAME = "fidelity.json", "fidelity.png"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = ("o", "x", "^", "+")
MISSED = "#B00020"
FORMAT = 1


def as_record(result: Result, facts: dict[str, Any]) -> dict[str, Any]:
    """The whole of `fidelity.json`; `facts` are those that only the caller knows."""
    missed = [figure for figure in result.figures if not figure.ok]
    return {
        "format": FORMAT,
        **facts,
        "ok": not missed,
        "missed": len(missed),
        "root": os.geteuid() == 0 and _own_user_namespace() is False,
        "delay_mechanism": result.mechanism,
        "delay_report": result.delay_report,
        "environment": msgspec.to_builtins(environment()),
        "figures": [figure.record() for figure in result.figures],
    }


def _own_user_namespace() -> bool:
    """Whether this process is root only in a user namespace of its own."""
    ranges = Path("/proc/self/uid_map").read_text().split()
    return ranges[1:] != ["0", "4294967295"]


def write(folder: Path, record: dict[str, Any], figures: Sequence[Figure]) -> tuple[Path, Path]:
    """Write both files; returns their paths."""
    json_path, plot_path = folder / JSON_NAME, folder / PLOT_NAME
    write_whole(json_path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    title = f"{record['profile']}: emulated network against profile ({record['delay_mechanism']})"
    draw(plot_path, figures, title)
    return json_path, plot_path


def show(figures: Sequence[Figure], console: Console | None = None) -> None:
    """One line per section and the figure nearest to, or furthest beyond, its bound; then every miss."""
    console = console or Console()
    table = Table(title="asked and measured, the worst of each section", title_justify="left")
    for column in ("section", "figures", "worst", "asked", "measured", "bound", ""):
        table.add_column(column, justify="right" if column in ("figures", "asked", "measured") else "left")
    for section in dict.fromkeys(figure.section for figure in figures):
        there = [figure for figure in figures if figure.section == section]
        worst = max(there, key=lambda figure: figure.off)
        passed = sum(figure.ok for figure in there)
        verdict = "pass" if passed == len(there) else f"FAIL {len(there) - passed}"
        table.add_row(section, str(len(there)), *_cells(worst), verdict)
    console.print(table)
    missed = [figure for figure in figures if not figure.ok]
    if missed:
        table = Table(title=f"{len(missed)} of {len(figures)} miss their bound", title_justify="left")
        for column in ("section", "of", "asked", "measured", "bound"):
            table.add_column(column)
        for figure in missed:
            table.add_row(figure.section, *_cells(figure))
        console.print(table)


def _cells(figure: Figure) -> tuple[str, str, str, str]:
    measured = "nothing" if figure.measured is None else f"{number(figure.measured)} {figure.unit}"
    return figure.name, f"{number(figure.asked)} {figure.unit}", measured, figure.bound.text(figure.unit)


def newest(folder: Path, profile: str, kernel: str) -> Path | None:
    """The newest `fidelity.json` below `folder` for a profile and kernel, None where there is none."""
    found = []
    for path in folder.rglob(JSON_NAME):
        try:
            record = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        if record.get("profile") == profile and record.get("environment", {}).get("kernel") == kernel:
            found.append((record.get("date", ""), path))
    return max(found)[1] if found else None


def now() -> str:
    """ISO 8601 with offset."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


# The picture


def draw(path: Path, figures: Sequence[Figure], title: str) -> None:
    """Four panels: goodput, message times and round trips against nominal with their bounds, and the trace."""
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(11.0, 8.0), layout="constrained")
        FigureCanvasAgg(canvas)
        missed = sum(not figure.ok for figure in figures)
        verdict = f"all {len(figures)} figures within bounds" if not missed else f"{missed} of {len(figures)} miss"
        canvas.suptitle(f"{title}: {verdict}", x=0.01, ha="left", color=MISSED if missed else "black")
        panels = canvas.subplots(2, 2)
        _goodput_panel(panels[0, 0], figures)
        _message_panel(panels[0, 1], figures)
        _round_trip_panel(panels[1, 0], figures)
        _trace_panel(panels[1, 1], figures)
        with replacing(path) as temporary:
            canvas.savefig(temporary, dpi=DPI, format="png", metadata={"Software": None})


def _scatter(axes: Axes, figures: Sequence[Figure], prefix: str, off: Callable[[Figure], float]) -> list[float]:
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
        axes.legend(fontsize=8, loc="best")
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
    axes.fill_between(across, [-y for y in room], room, color="#009E73", alpha=0.10, linewidth=0)
    axes.set_xlim(low, high)
    axes.axhline(0, color="#888888", linewidth=0.8)


def _percent(figure: Figure) -> float:
    assert figure.measured is not None
    return 100 * (figure.measured / figure.asked - 1)


def _difference(figure: Figure) -> float:
    assert figure.measured is not None
    return figure.measured - figure.asked


def _goodput_panel(axes: Axes, figures: Sequence[Figure]) -> None:
    axes.set(title="Goodput of every pair", xlabel="nominal (Mbit/s)", ylabel="measured - nominal (%)", xscale="log")
    _band(axes, _scatter(axes, figures, "goodput", _percent), GOODPUT, as_percent=True)


def _message_panel(axes: Axes, figures: Sequence[Figure]) -> None:
    axes.set(title="Time of single messages", xlabel="size / rate + delay (ms)", xscale="log")
    axes.set_ylabel("measured - nominal (ms)")
    axes.set_yscale("symlog", linthresh=1.0)
    _band(axes, _scatter(axes, figures, "message", _difference), MESSAGE, as_percent=False)


def _round_trip_panel(axes: Axes, figures: Sequence[Figure]) -> None:
    axes.set(title="Round trips", xlabel="nominal (ms)", ylabel="measured - nominal (ms)")
    nominal = _scatter(axes, figures, "round trip", _difference)
    for bound in (RTT_MEDIAN, RTT_P95):
        _band(axes, nominal, bound, as_percent=False)


def _trace_panel(axes: Axes, figures: Sequence[Figure]) -> None:
    axes.set(title="Rates changed once a second", xlabel="second", ylabel="goodput (Mbit/s)", ylim=(0, None))
    traces = [figure for figure in figures if "asked_mbit" in figure.detail][:4]
    for color, figure in zip(COLORS, traces, strict=False):
        asked, measured = figure.detail["asked_mbit"], figure.detail["measured_mbit"]
        axes.stairs(asked, range(len(asked) + 1), color=color, linewidth=1.2, label=f"{figure.name}: line asked")
        middle = [second + 0.5 for second in range(len(measured))]
        axes.plot(middle, measured, color=color, marker="o", linestyle="none", markersize=5)
    if traces:
        axes.plot([], [], color="black", marker="o", linestyle="none", label="points measured")
        axes.legend(fontsize=8, loc="best")
    else:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
