"""`replay.png`: what a trace asked of the WAN, what crossed it, and how the training went on under it.

Drawn from the records alone. Asked: the run's `capacity` events, and before a link's first one the profile's rate.
Measured: the seconds of `links` as goodput, headers taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.picture import save
from testbed.report.plots import DPI, RAW_LINES, STYLE
from testbed.report.summary import Target, running_mean
from testbed.report.wording import clock, conditions, times, title

PANELS = 4  # links that are drawn
BINS, POINTS = 100, 600  # of a link's throughput, of a loss; finer than that is noise at this size
# When a trace is at its worst: its tightest link below this share of its best, and at most so many times its least.
LOW, NEAR = 0.7, 1.25
SLOWER = 1.05  # times as long a step; what is less is not worth a word
LINE = 165  # characters of the small print
SPANS = 12  # of worst times; more of them are a pattern, not a message
NAMED = 4  # systems that the sentence at the top tells of
INK, ASKED, WORST = "#222222", "#DCE3EC", "#B00020"


@dataclass(frozen=True)
class Course:
    """What a trace asked of one link: from `time_s[i]` on `goodput_mbit[i]`, arrays of one shape that begin at 0 s.

    `also_back` says that it asked the same of the other direction; `rtt_ms` are the RTTs that it set.
    """

    link: str
    time_s: np.ndarray
    goodput_mbit: np.ndarray
    rtt_ms: tuple[float, ...] = ()
    also_back: bool = False

    @property
    def name(self) -> str:
        return self.link.replace(">", " ⇄ " if self.also_back else " → ")

    def at(self, time_s: np.ndarray) -> np.ndarray:
        """The rate in force at each of these times."""
        return self.goodput_mbit[np.searchsorted(self.time_s, time_s, side="right") - 1]


@dataclass(frozen=True)
class Worst:
    """When the tightest of the changed links was at its tightest: that link, and its rate against the best it was."""

    course: Course
    share: float
    spans: tuple[tuple[float, float], ...]


def replay(run: Run, path: Path) -> bool:
    """Draw the replay of `run` to the PNG `path`; returns False, and draws nothing, where no trace was played."""
    results = _first_seeds(run)
    if not run.info.topology.get("trace") or not results:
        return False
    end_s = max(_end_s(result) for result in results)
    courses = courses_of(run, results)
    if not courses:
        return False
    with matplotlib.rc_context():
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)  # whatever the user's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        shown = courses[:PANELS]
        heights = [1.3, 1.5 * len(shown) + 3.0]
        figure = Figure(figsize=(10.0, sum(heights)), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
        FigureCanvasAgg(figure)
        heading, body = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
        worst = worst_of(courses, end_s)
        _head(heading, run, results, worst, len(shown), len(courses))
        axes = body.subplots(len(shown) + 1, 1, sharex=True, height_ratios=[*[1.5] * len(shown), 3.0])
        for panel, course in zip(axes, shown, strict=False):
            _draw_link(panel, course, results, end_s)
        _draw_losses(axes[-1], results, Target.of(run.info))
        if worst is not None:
            _shade(axes, worst)
        axes[-1].set_xlim(0, end_s)
        axes[-1].set_xlabel(f"{clock([run.info.fabric])} (s)")
        save(figure, path)
    return True


def _first_seeds(run: Run) -> list[Result]:
    """One result of each system that did a step; all of a system's seeds had the same trace."""
    return list({result.system: result for result in reversed(run.results) if len(result.steps)}.values())[::-1]


def _end_s(result: Result) -> float:
    return float(result.steps["time_s"].iloc[-1])


# What was asked


def courses_of(run: Run, results: Sequence[Result]) -> list[Course]:
    """The links that the trace changed and that carried traffic, the one that gets slowest in front.

    All systems had the same trace; it is read where it went on for longest.
    """
    events = max(results, key=_end_s).events
    changes = events[events["event"] == "capacity"]
    if not len(changes):
        return []
    carried: dict[str, int] = {}
    for result in results:
        for link, total in result.link_bytes.items():
            carried[link] = carried.get(link, 0) + total
    found: dict[str, Course] = {}
    for link, rows in changes.groupby("link", sort=False):
        if not carried.get(str(link)):
            continue
        time_s, rate = rows["time_s"].to_numpy(float), rows["goodput_mbit"].to_numpy(float)
        rtt_ms = tuple(rows["rtt_ms"].dropna().unique()) if "rtt_ms" in rows else ()
        if time_s[0] > 0 and str(link) in run.info.network:
            time_s, rate = np.append(0.0, time_s), np.append(run.info.network[str(link)].goodput_mbit, rate)
        found[str(link)] = Course(str(link), np.append(0.0, time_s[1:]), rate, rtt_ms)
    order = sorted(found.values(), key=lambda course: (course.goodput_mbit.min(), -carried[course.link]))
    return _merged(order)


def _merged(courses: Sequence[Course]) -> list[Course]:
    """One course for the two directions of a link where the trace asked the same of both."""
    kept: list[Course] = []
    for course in courses:
        back = ">".join(reversed(course.link.split(">")))
        twin = next((k for k, other in enumerate(kept) if other.link == back and _same(other, course)), None)
        if twin is None:
            kept.append(course)
        else:
            kept[twin] = replace(kept[twin], also_back=True)
    return kept


def _same(one: Course, other: Course) -> bool:
    """Whether two courses are the same but for how late each change came."""
    return (
        one.goodput_mbit.shape == other.goodput_mbit.shape
        and bool(np.all(one.goodput_mbit == other.goodput_mbit))
        and bool(np.all(np.abs(one.time_s - other.time_s) < 1.0))
    )


def worst_of(courses: Sequence[Course], end_s: float) -> Worst | None:
    """When the tightest of some links was at its worst before `end_s`.

    None where it is never low, or low too often to be told. A step of a synchronous system waits for its slowest
    link, so the least of all rates is what it feels.
    """
    starts = np.unique(np.concatenate([course.time_s[course.time_s < end_s] for course in courses]))
    rates = np.stack([course.at(starts) for course in courses])
    tightest = rates.min(axis=0)
    least, best = float(tightest.min()), float(tightest.max())
    if least > LOW * best:
        return None
    spans: list[tuple[float, float]] = []
    for rate, begin_s, stop_s in zip(tightest, starts, np.append(starts[1:], end_s), strict=True):
        if rate > min(NEAR * least, LOW * best):
            continue
        if spans and spans[-1][1] == begin_s:
            spans[-1] = (spans[-1][0], float(stop_s))
        else:
            spans.append((float(begin_s), float(stop_s)))
    if len(spans) > SPANS:
        return None
    return Worst(courses[int(rates.min(axis=1).argmin())], least / best, tuple(spans))


def slowdown(result: Result, worst: Worst) -> float | None:
    """How many times as long a step took while the trace was at its worst as it took otherwise.

    Steps are counted in fractions. None where the run has not been in both; infinite where not a tenth of a step
    was done.
    """
    ends_s = np.append(0.0, result.steps["time_s"].to_numpy())
    done = np.arange(len(ends_s))
    low_s = low_steps = 0.0
    for begin_s, stop_s in worst.spans:
        begin_s, stop_s = min(begin_s, ends_s[-1]), min(stop_s, ends_s[-1])
        low_s += stop_s - begin_s
        low_steps += float(np.diff(np.interp((begin_s, stop_s), ends_s, done))[0])
    rest_s, rest_steps = ends_s[-1] - low_s, done[-1] - low_steps
    if low_s <= 0 or rest_steps < 1 or low_s < rest_s / rest_steps:
        return None
    return low_s / low_steps / (rest_s / rest_steps) if low_steps >= 0.1 else np.inf


# Panels


def _head(figure: SubFigure, run: Run, results: Sequence[Result], worst: Worst | None, shown: int, of: int) -> None:
    """Title, what the worst of the trace did to each system, conditions, and the legend of all panels."""
    trace = Path(str(run.info.topology["trace"])).name.removesuffix(".csv")
    figure.text(0.012, 0.93, f"{title(run)} under the trace {trace}", fontsize=14, fontweight="bold", va="top")
    figure.text(0.012, 0.66, told(results, worst) if worst else "", fontsize=11, va="top")
    notes = [f"{shown} of {of} changed links shown, those that get slowest"] if shown < of else []
    notes += [f"seed {results[0].seed} of {len(run.info.seeds)}"] if len(run.info.seeds) > 1 else []
    small = fill(" · ".join([conditions(run), *notes]), LINE)
    figure.text(0.012, 0.44, small, fontsize=8, color="#555555", va="top")
    handles: list[Artist] = [Patch(facecolor=ASKED, edgecolor=INK, label="capacity asked by the trace")]
    for result in results:
        style = look(result.system)
        handles.append(Line2D([], [], color=style.color, ls=style.line, lw=2.2, label=style.label))
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.004, -0.1), ncols=8, frameon=False)


def _shade(axes: Sequence[Axes], worst: Worst) -> None:
    """Mark the worst times in all panels, and say in the first how bad they are."""
    for begin_s, stop_s in worst.spans:
        for panel in axes:
            panel.axvspan(begin_s, stop_s, color=WORST, alpha=0.08, lw=0, zorder=0)
    longest = max(worst.spans, key=lambda span: span[1] - span[0])
    axes[0].annotate(
        f"{100 * worst.share:.2g} %",
        xy=(sum(longest) / 2, 0.88),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="center",
        fontsize=11,
        fontweight="bold",
        color=WORST,
        zorder=5,
    )


def told(results: Sequence[Result], worst: Worst) -> str:
    """In a sentence what the worst of the trace did to the systems, the most hurt first."""
    factors = {look(result.system).label: slowdown(result, worst) for result in results}
    before = [name for name, factor in factors.items() if factor is None]
    known = sorted(((factor, name) for name, factor in factors.items() if factor is not None), reverse=True)
    slower = [f"{name} stands still" if f == np.inf else f"{name} {times(f)}" for f, name in known if f > SLOWER]
    same = len(known) - len(slower)
    if len(slower) > NAMED:
        slower = [*slower[: NAMED - 1], f"{len(slower) - NAMED + 1} others less"]
    parts = [f"steps take longer: {', '.join(slower)}"] if slower else []
    parts += [f"{same} of {len(results)} systems are no slower"] if same else []
    parts += [f"done before: {', '.join(before)}"] if before else []
    return f"While {worst.course.name} is at {100 * worst.share:.2g} %, {'; '.join(parts)}"


def _draw_link(axes: Axes, course: Course, results: Sequence[Result], end_s: float) -> None:
    """Capacity asked as an area with a bold edge, each system's throughput as a line within it."""
    edges, asked = np.append(course.time_s, max(end_s, course.time_s[-1])), np.append(course.goodput_mbit, 0.0)
    asked[-1] = asked[-2]
    axes.fill_between(edges, asked, step="post", color=ASKED, lw=0, zorder=1)
    axes.step(edges, asked, where="post", color=INK, lw=1.4, zorder=2)
    for result in results:
        at_s, mbit = throughput(result, course.link)
        style = look(result.system)
        axes.step(at_s, mbit, where="post", color=style.color, lw=1.3, zorder=3)
    rtt = f", RTT {min(course.rtt_ms):g} to {max(course.rtt_ms):g} ms" if len(course.rtt_ms) > 1 else ""
    axes.set_title(f"{course.name}: capacity asked, goodput measured{rtt}", fontsize=10)
    axes.set_ylabel("Mbit/s")
    axes.set_ylim(0, 1.12 * course.goodput_mbit.max())
    axes.yaxis.set_major_locator(MaxNLocator(4))


def throughput(result: Result, link: str) -> tuple[np.ndarray, np.ndarray]:
    """Goodput (Mbit/s) that a link carried from each of these times (s) on; two arrays of one shape, at most about
    BINS long. The last value is repeated at the end of the run."""
    rows = result.links[result.links["link"] == link]
    if not len(rows):
        return np.array([0.0, _end_s(result)]), np.zeros(2)
    second = rows["second"].to_numpy()
    sent = np.zeros(second.max() + 1)
    sent[second] = rows["wire_bytes"].to_numpy()
    width = -(-len(sent) // BINS)
    starts = np.arange(0, len(sent), width)
    end_s = max(_end_s(result), starts[-1] + 0.1)
    lengths_s = np.diff(np.append(starts, max(min(starts[-1] + width, end_s), starts[-1] + 0.1)))
    mbit = np.add.reduceat(sent, starts) * PAYLOAD_PER_WIRE * 8e-6 / lengths_s
    return np.append(starts, end_s), np.append(mbit, mbit[-1])


def _draw_losses(axes: Axes, results: Sequence[Result], target: Target) -> None:
    for result in results:
        style, (time_s, smooth) = look(result.system), _thinned(result, target.window)
        axes.plot(time_s, smooth, color=style.color, ls=style.line, lw=2.0, zorder=3)
        axes.plot(time_s[-1], smooth[-1], style.marker, color=style.color, ms=6, zorder=4, clip_on=False)
    if target.loss is not None:
        axes.axhline(target.loss, color=INK, lw=1.1, ls=(0, (4, 3)), zorder=2, label=f"target {target.loss:g}")
        axes.legend(loc="upper right", frameon=False)
    limits = axes.get_ylim()  # single steps must not squeeze the means
    for result in results if len(results) <= RAW_LINES else ():
        axes.plot(*_thinned(result, 1), color=look(result.system).color, lw=0.6, alpha=0.25, zorder=1)
    axes.set_ylim(limits)
    axes.set_title("Training loss by time", fontsize=10)
    axes.set_ylabel(f"loss (mean of {target.window} steps)")


def _thinned(result: Result, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and running mean of the losses, at most about POINTS of them, the last among them."""
    loss, time_s = result.steps["loss"].to_numpy(), result.steps["time_s"].to_numpy()
    stride = -(-len(loss) // POINTS)
    return time_s[::-stride][::-1], running_mean(loss, min(window, len(loss)))[::-stride][::-1]
