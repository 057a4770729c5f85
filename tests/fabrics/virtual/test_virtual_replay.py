"""The virtual WAN follows a trace: each interval within 5 % of what was asked, the whole within 1 %."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import network, quadratic_task

from testbed.fabrics.base import TraceEnded
from testbed.fabrics.virtual import VirtualFabric
from testbed.fabrics.virtual.flows import WIRE_PER_PAYLOAD
from testbed.faults import Schedule
from testbed.message import Message
from testbed.record.events import Capacity, LinkBytes
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.systems import Node, Options, System
from testbed.systems.terngrad import ServerState
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link
from testbed.wan.trace import Change, Trace

ROLES = Roles(("a", "b"), 1, "c")
PLAN = NetworkPlan(ROLES.all, network(("a", "b", "c"), Link(1000, 0.2), Link(40, 20)))
PART = [np.zeros(60_000, np.uint8)]


class Flood(System):
    """LPSs that keep their WAN links to the global server full."""

    def __init__(self) -> None:
        super().__init__(quadratic_task(ROLES, steps=10**6), Options())

    def initial_state(self, name: str) -> ServerState:
        return ServerState()

    async def worker(self, node: Node, state: ServerState) -> None:
        """Does nothing."""

    async def lps(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            await node.send(node.global_server, Message("part", step, PART))

    async def global_server(self, node: Node, state: ServerState) -> None:
        async for _, _ in node.serve(node.lpss):
            pass

    def models(self, states: Any) -> dict[str, Any]:
        return {}


def flooded(trace: Trace, interval_s: float = 1.0, runs: int = 1) -> tuple[list[LinkBytes], list[Capacity]]:
    """What crossed the WAN links, and the changes made, of the last of some runs that end with their trace."""
    fabric = VirtualFabric(PLAN, compute_model("m60"), lambda name, seed: Flood(), interval_s, Schedule(trace))
    for _ in range(runs):
        events: list[Any] = []
        fabric.record = events.append
        fabric.begin("flood", 0, Path(), 0.0, None)
        with pytest.raises(TraceEnded) as end:
            fabric.segment(10**6)
        assert end.value.clock_s == trace.end_s
    return (
        [event for event in events if isinstance(event, LinkBytes) and event.wan_bytes],
        [event for event in events if isinstance(event, Capacity)],
    )


def goodput_mbit(event: LinkBytes, link: str) -> float:
    return event.wire_bytes[link] / WIRE_PER_PAYLOAD * 8e-6 / event.interval_s


@pytest.mark.slow
def test_a_change_each_second_each_interval_within_5_percent_and_the_whole_within_1() -> None:
    random, seconds = Random(7), 30
    asked = {(t, src): random.uniform(1, 200) for t in range(seconds) for src in "ab"}
    trace = Trace(
        "each", tuple(Change(float(t), src, "c", rate) for (t, src), rate in asked.items()), end_s=float(seconds)
    )
    crossed, made = flooded(trace)
    assert len(made) == 2 * seconds
    assert all(change.late_s == 0 for change in made)
    for src in "ab":
        got = [goodput_mbit(event, f"{src}>c") for event in crossed]
        wanted = [asked[t, src] for t in range(seconds)]
        assert len(got) == seconds
        assert got == pytest.approx(wanted, rel=0.05)
        assert sum(got) == pytest.approx(sum(wanted), rel=0.01)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 2.0), st.floats(1, 100)), min_size=1, max_size=12))
@pytest.mark.slow
def test_the_whole_holds_wherever_the_changes_fall(steps: list[tuple[float, float]]) -> None:
    times = [0.0]
    for length_s, _ in steps:
        times.append(times[-1] + length_s)
    rates = [rate for _, rate in steps]
    trace = Trace("any", tuple(Change(t, "a", "c", r) for t, r in zip(times, rates, strict=False)), end_s=times[-1])
    crossed, _ = flooded(trace, interval_s=0.5)
    asked = sum(rate * (end - begin) for rate, (begin, end) in zip(rates, pairwise(times), strict=True))
    got = sum(goodput_mbit(event, "a>c") * event.interval_s for event in crossed)
    assert got == pytest.approx(asked, rel=0.01)


def test_a_link_that_the_trace_does_not_name_keeps_the_profiles_rate() -> None:
    crossed, _ = flooded(Trace("a only", (Change(1.0, "a", "c", 5.0),), end_s=4.0))
    assert [goodput_mbit(event, "b>c") for event in crossed] == pytest.approx([40.0] * 4, rel=1e-3)


def test_the_next_system_begins_with_the_profile_again() -> None:
    trace = Trace("fade", (Change(1.0, "a", "c", 5.0, rtt_ms=300),), end_s=3.0)
    assert flooded(trace, runs=2) == flooded(trace)
