"""What a trace asked of the WAN's links, what crossed them, and what that did to the systems.

Asked: the run's `capacity` events, and before a link's first one the profile's rate. Measured: the seconds of `links`
as goodput, headers taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.wording import times

BINS = 100  # of a link's throughput; finer than that is noise at the size it is drawn
# When a trace is at its worst: its tightest link below this share of its best, and at most so many times its least.
LOW, NEAR = 0.7, 1.25
SLOWER = 1.05  # times as long a step; what is less is not worth a word
SPANS = 12  # of worst times; more of them are a pattern, not a message
NAMED = 4  # systems that the sentence at the top tells of


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


def last_s(result: Result) -> float:
    """When the last step ended."""
    return float(result.steps["time_s"].iloc[-1])


def courses_of(run: Run, results: Sequence[Result]) -> list[Course]:
    """The links that the trace changed and that carried traffic, the one that gets slowest in front.

    All systems had the same trace; it is read where it went on for longest.
    """
    events = max(results, key=last_s).events
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


def throughput(result: Result, link: str) -> tuple[np.ndarray, np.ndarray]:
    """Goodput (Mbit/s) that a link carried from each of these times (s) on; two arrays of one shape, at most about
    BINS long. The last value is repeated at the end of the run."""
    rows = result.links[result.links["link"] == link]
    if not len(rows):
        return np.array([0.0, last_s(result)]), np.zeros(2)
    second = rows["second"].to_numpy()
    sent = np.zeros(second.max() + 1)
    sent[second] = rows["wire_bytes"].to_numpy()
    width = -(-len(sent) // BINS)
    starts = np.arange(0, len(sent), width)
    end_s = max(last_s(result), starts[-1] + 0.1)
    lengths_s = np.diff(np.append(starts, max(min(starts[-1] + width, end_s), starts[-1] + 0.1)))
    mbit = np.add.reduceat(sent, starts) * PAYLOAD_PER_WIRE * 8e-6 / lengths_s
    return np.append(starts, end_s), np.append(mbit, mbit[-1])


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
    parts += [f"{same} of {len(results)} systems {'is' if same == 1 else 'are'} no slower"] if same else []
    parts += [f"done before: {', '.join(before)}"] if before else []
    return f"While {worst.course.name} is at {100 * worst.share:.2g} %, {'; '.join(parts)}"
