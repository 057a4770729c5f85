"""A timeline as a trace that viewers of others open: Perfetto's (ui.perfetto.dev), Chrome's, speedscope.

The format is Google's Trace Event Format (JSON): a process a region, a track a role, flows for messages, counters for
what links carried. Times are microseconds on the run's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nextafter
from typing import Any

import pandas as pd

from testbed.record.events import is_wan
from testbed.report.numbers.timeline import Timeline
from testbed.wan.plan import region_of

RUN, MESSAGES, LINKS = "run", "messages on their way", "links"  # processes beside the regions
SHORTEST_S = 1e-8  # what is shorter is the rounding of times to nanoseconds
CODING = 0.5  # from this share on a computation is one of coding


def trace_events(timeline: Timeline, links: pd.DataFrame) -> dict[str, Any]:
    """The content of a trace file.

    Parameters
    ----------
    links : of the same system and seed (`testbed.record.frames`)
    """
    processes = [RUN, *dict.fromkeys(map(region_of, timeline.roles)), MESSAGES, LINKS]
    tracks: dict[tuple[str, str], int] = {}
    events = [
        *_steps(timeline),
        *_computed(timeline),
        *_messages(timeline),
        *_carried(links[links["second"] < timeline.end_s]),
    ]
    for event in events:
        process, track = event.pop("track")
        event["tid"] = tracks.setdefault((process, track), len(tracks) + 1)
        event["pid"] = processes.index(process) + 1
    names = [_name("process_name", k + 1, 0, process) for k, process in enumerate(processes)]
    names += [
        _name("thread_name", processes.index(process) + 1, tid, track) for (process, track), tid in tracks.items()
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": {"system": timeline.system}}


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(process: str, track: str, name: str, begin_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """A slice that ends where `end_s` is, or a float before it: viewers drop one that reaches into the next."""
    begin_us, end_us = 1e6 * begin_s, 1e6 * end_s
    dur = end_us - begin_us
    while begin_us + dur > end_us:
        dur = nextafter(dur, 0.0)
    return {"ph": "X", "name": name, "ts": begin_us, "dur": dur, "track": (process, track), **more}


def _steps(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for step, (begin_s, end_s) in enumerate(zip([0.0, *timeline.steps_s], timeline.steps_s, strict=False)):
        yield _slice(RUN, "steps", f"step {step}", begin_s, end_s)


def _computed(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Each role's computations, and what lies between them, which it waits for."""
    for role in timeline.roles:
        process, free_s = region_of(role), 0.0
        for it in timeline.computed[timeline.computed["node"] == role].sort_values("begin_s").itertuples():
            if it.begin_s > free_s + SHORTEST_S:
                yield _slice(process, role, "waiting", free_s, it.begin_s, cat="waiting")
            kind = "coding" if it.codec_s > CODING * (it.end_s - it.begin_s) else "computing"
            begin_s = max(it.begin_s, free_s)  # beginnings are rounded to nanoseconds
            yield _slice(process, role, it.what or kind, begin_s, max(begin_s, it.end_s), cat=kind)
            free_s = max(begin_s, it.end_s)
        if free_s + SHORTEST_S < timeline.end_s:
            yield _slice(process, role, "waiting", free_s, timeline.end_s, cat="waiting")


def _messages(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Each message on a track of its connection, and as an arrow from who sent it to who got it."""
    for number, it in enumerate(timeline.messages.itertuples(), start=1):
        name, track = f"{it.kind}, {it.nbytes:,} B", (MESSAGES, f"{it.peer} > {it.node}")
        both = {"cat": "wan" if it.wan else "lan", "id": number, "name": name}
        yield {**both, "ph": "b", "ts": 1e6 * it.sent_s, "track": track, "args": {"bytes": it.nbytes}}
        yield {**both, "ph": "e", "ts": 1e6 * it.arrived_s, "track": track}
        yield {**both, "ph": "s", "ts": 1e6 * it.sent_s, "track": (region_of(it.peer), it.peer)}
        yield {**both, "ph": "f", "bp": "e", "ts": 1e6 * it.arrived_s, "track": (region_of(it.node), it.node)}


def _carried(links: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """What WAN links carried, a value a second."""
    for it in links.itertuples():
        if is_wan(it.link):
            mbit = {"Mbit/s": it.wire_bytes * 8e-6}
            yield {"ph": "C", "name": it.link, "ts": 1e6 * it.second, "track": (LINKS, it.link), "args": mbit}
