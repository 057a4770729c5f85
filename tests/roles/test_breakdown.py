"""Where a step's time went: computing, codec, and the links on the trail of messages that it waited for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Play, word
from small_runs import EXCHANGING, Played, each_system, network, quadratic_task
from small_runs import play as train

from testbed.message import Message
from testbed.record.events import Event, Exchange, Guard, StepDone
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.roles.trail import LONGEST, Hops, Signal, Trail, extended
from testbed.systems import SYSTEMS, Node, Work
from testbed.systems.isgq import ISGQ
from testbed.wan.profile import Link, Profile

BULK = Message("bulk", 0, [np.zeros(12_500_000, np.uint8)])
STEPS = 4
near = partial(pytest.approx, rel=1e-3)  # the markers at a segment's end are on their way, too


def lan_s(message: Message) -> float:
    """On the scripted network: 1000 Mbit/s, 0.5 ms one way."""
    return message.nbytes / 125e6 + 0.5e-3


def wan_s(message: Message) -> float:
    """On the scripted network, alone on the link: 100 Mbit/s, 10 ms one way, and the LAN's delay."""
    return message.nbytes / 12.5e6 + 10.5e-3


def steps_of(events: Sequence[Event], node: str) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone) and event.node == node]


def links(roles: dict[str, Play], node: str = "a/w0") -> tuple[float | None, float | None]:
    """Play scripted roles; what the only step of `node` spent on the LAN and on the WAN."""
    [step] = steps_of(scripted.play(roles)[0], node)
    return step.lan_s, step.wan_s


def says(*messages: Message, after_s: float = 0.0) -> Play:
    """A worker that sends to its LPS."""

    async def worker(node: Node) -> None:
        await node.sleep(after_s)
        for message in messages:
            await node.send(node.lps, message)

    return worker


def asks(message: Message) -> Play:
    """A worker whose step is a question to its LPS and the wait for the answer."""

    async def worker(node: Node) -> None:
        await node.send(node.lps, message)
        await node.recv(node.lps)
        node.step_done(0, loss=0.5)

    return worker


# One wait


@pytest.mark.parametrize("busy_s", [0.0, 0.05, 1.0])
def test_a_link_counts_for_as_long_as_somebody_waits_for_it(busy_s: float) -> None:
    """Not while the role computes, and not at all for a message that was there before it was asked for."""
    device = compute_model("m60").device
    assert device is not None

    async def lps(node: Node) -> None:
        await node.send("a/w0", BULK)

    async def worker(node: Node) -> None:
        await node.compute(Work(flops=busy_s * 45e9), int)
        await node.recv(node.lps)
        node.step_done(0, loss=0.5)

    expected_s = max(lan_s(BULK) - device.seconds(Work(flops=busy_s * 45e9)), 0.0)
    assert links({"a/lps": lps, "a/w0": worker}) == (near(expected_s), 0.0)


def test_the_time_before_a_message_is_sent_is_no_links() -> None:
    async def lps(node: Node) -> None:
        await node.sleep(3)
        await node.send("a/w0", word("late"))

    async def worker(node: Node) -> None:
        await node.recv(node.lps)
        node.step_done(0, loss=0.5)

    assert links({"a/lps": lps, "a/w0": worker}) == (near(lan_s(word("late"))), 0.0)


# The trail


async def by_recv(node: Node) -> None:
    await node.recv("a/w0")


async def by_collect(node: Node) -> None:
    await node.collect(["a/w0"])


async def by_serve(node: Node) -> None:
    async for _ in node.serve(["a/w0"]):
        return


@pytest.mark.parametrize("take", [by_recv, by_collect, by_serve])
@pytest.mark.parametrize("background", [False, True])
def test_an_answer_carries_the_way_of_its_question(take: Play, background: bool) -> None:
    async def answer(node: Node) -> None:
        await take(node)
        await node.sleep(2)
        await node.send("a/w0", word("answer"))

    async def lps(node: Node) -> None:
        if background:
            node.spawn(answer(node))
        else:
            await answer(node)

    expected_s = lan_s(BULK) + lan_s(word("answer"))
    assert links({"a/w0": asks(BULK), "a/lps": lps}) == (near(expected_s), 0.0)


@pytest.mark.parametrize(("event", "way"), [(Signal, lan_s(BULK)), (asyncio.Event, 0.0)])
def test_a_signal_stands_for_a_message_and_a_plain_event_does_not(event: type[asyncio.Event], way: float) -> None:
    async def lps(node: Node) -> None:
        arrived = event()

        async def listen() -> None:
            await node.recv("a/w0")
            arrived.set()

        node.spawn(listen())
        await node.wait(arrived, "a question")
        await node.send("a/w0", word("answer"))

    expected_s = way + lan_s(word("answer"))
    assert links({"a/w0": asks(BULK), "a/lps": lps}) == (near(expected_s), 0.0)


def test_what_the_background_waits_for_holds_up_nobody() -> None:
    """The LPS answers while something big comes in over the WAN: none of it is in the answer's trail."""

    async def global_server(node: Node) -> None:
        await node.send("a/lps", BULK)

    async def lps(node: Node) -> None:
        async def listen() -> None:
            await node.recv(node.global_server)

        node.spawn(listen())
        await node.sleep(2)
        await by_recv(node)
        await node.send("a/w0", word("answer"))

    roles = {"a/w0": asks(word("question")), "a/lps": lps, "c/gs": global_server}
    assert links(roles) == (near(lan_s(word("answer"))), 0.0)


def test_of_several_messages_the_last_one_is_the_trail() -> None:
    async def lps(node: Node) -> None:
        await node.collect(node.workers)
        await node.send("a/w0", word("mean"))

    roles = {"a/w0": asks(BULK), "a/w1": says(word("late"), after_s=1), "a/lps": lps}
    assert links(roles) == (near(lan_s(word("late")) + lan_s(word("mean"))), 0.0)


# Trails alone


def far_trail(hops: int) -> Hops:
    """A message between regions from 0 s to 1 s, one inside a region from 2 s to 3 s, and so on."""
    trail: Hops = ()
    for number in range(hops):
        trail = extended((2.0 * number, trail), 2.0 * number + 1, far=number % 2 == 0)
    return trail


def test_a_wait_takes_in_the_hops_since_it_began() -> None:
    trail = Trail()
    trail.follow(far_trail(5), since_s=2.75)
    assert (trail.lan_s, trail.wan_s) == (0.25 + 1, 1 + 1)
    trail.follow((*trail.hops, (9.0, 9.5, False)), since_s=9.0)
    assert trail.take() == (0.25 + 1 + 0.5, 1 + 1)
    assert trail.take() == (0, 0)


def test_a_trail_keeps_its_latest_hops() -> None:
    assert [sent_s for sent_s, _, _ in far_trail(LONGEST + 3)] == [2.0 * k for k in range(3, LONGEST + 3)]


# Systems

REGION = Roles(("a",), 1, "c")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))


def breakdown(played: Played, node: str = "a/w0") -> tuple[list[StepDone], list[float]]:
    """A worker's steps, and how long each took."""
    steps = steps_of(played.events, node)
    ends = [0.0, *(step.time_s for step in steps)]
    return steps, [end - began for began, end in itertools.pairwise(ends)]


def parts(step: StepDone) -> tuple[float, ...]:
    return step.compute_s, step.codec_s or 0.0, step.lan_s or 0.0, step.wan_s or 0.0


@pytest.mark.parametrize("stops", [(), (2,)])
def test_the_baselines_step_goes_up_and_down_again(stops: tuple[int, ...]) -> None:
    """Gradient, LAN up, sum, WAN up, mean, WAN down, LAN down, update: one after the other, and nothing else."""
    task = quadratic_task(REGION, STEPS)
    device = compute_model("m60").device
    assert device is not None
    vector = [np.zeros(task.layout.size, np.float32)]
    gradient, total, mean = (Message(kind, 0, vector) for kind in ("gradient", "sum", "mean"))
    one_sum = device.seconds(Work())  # of one worker, of one region: there is nothing to add, and nothing to code
    marker_s = lan_s(Message("boundary", 2)) + wan_s(Message("boundary", 2))

    steps, lengths = breakdown(train("baseline", task, PROFILE, stops=stops))
    for step, length_s in zip(steps, lengths, strict=True):
        assert step.lan_s == near(lan_s(gradient) + lan_s(mean))
        assert step.wan_s == near(wan_s(total) + wan_s(mean))
        assert step.compute_s == near(device.seconds(task.gradient_work) + device.seconds(task.update_work))
        assert step.codec_s == 0
        waiting_s = length_s - sum(parts(step))
        assert waiting_s == near(2 * one_sum, abs=marker_s if step.step in stops else 1e-9)


def test_in_the_flat_topology_there_is_no_lan() -> None:
    steps, _ = breakdown(train("baseline", quadratic_task(Roles(("a",), 1, "c", kind="flat"), STEPS), PROFILE))
    vector = [np.zeros(quadratic_task(REGION, 1).layout.size, np.float32)]
    expected_s = wan_s(Message("gradient", 0, vector)) + wan_s(Message("mean", 0, vector))
    assert [(step.lan_s, step.wan_s) for step in steps] == [(0.0, near(expected_s))] * STEPS


def test_weightgrads_exchange_does_not_count_while_no_guard_holds() -> None:
    played = train("weightgrad", quadratic_task(REGION, STEPS), PROFILE, {"threshold_max": 1.0})
    assert played.of(Exchange)
    assert not played.of(Guard)
    steps, _ = breakdown(played)
    assert [step.wan_s for step in steps] == [0.0] * STEPS
    assert all(step.lan_s for step in steps)


def test_diloco_waits_for_the_wan_when_it_exchanges_and_less_when_steps_overlap() -> None:
    def wan(**options: Any) -> list[float]:
        task = quadratic_task(REGION, 6)
        steps, _ = breakdown(train("diloco", task, PROFILE, {"local_steps": 2, **options}))
        return [step.wan_s or 0.0 for step in steps]

    vector = [np.zeros(quadratic_task(REGION, 1).layout.size, np.float32)]
    exchange_s = wan_s(Message("outer", 1, vector)) + wan_s(Message("mean", 1, vector))
    assert wan() == near([0.0, exchange_s] * 3)
    overlapping = wan(overlap_steps=1, local_steps=3)
    assert sum(overlapping) == 0.0, "a step is longer than the exchange"


def assert_parts_fit(system: str, profile: Profile) -> None:
    """Computing, codec and links are parts of each step: none is negative, together they are no longer than it."""
    kind = SYSTEMS[system]
    roles = Roles(("a", "b"), 2, "c", kind.peers or "tree", kind.is_mesh(kind.options_type(), 2))
    played = train(system, quadratic_task(roles, STEPS), profile, OPTIONS.get(system, {}), stops=(2,))
    for worker in roles.workers:
        steps, lengths = breakdown(played, worker)
        assert len(steps) == STEPS
        for step, length_s in zip(steps, lengths, strict=True):
            assert min(parts(step)) >= 0
            assert sum(parts(step)) <= length_s + len(parts(step)) * 1e-9  # each is rounded
        assert any(step.lan_s or step.wan_s for step in steps)


UNEVEN = network(("a", "b", "c"), Link(100, 8), Link(10, 60), {("a", "c"): Link(1, 200), ("c", "b"): Link(2, 20)})
OPTIONS: dict[str, dict[str, Any]] = {
    "concord": {"lan": "together"},  # else nobody waits for a link
    "weightgrad": EXCHANGING,
    "gaia": {"threshold": 0.02, "barrier_s": 0.001, "clock_steps": 1},
    "diloco": {"local_steps": 3, "fragments": 2},
    "cocod": {"local_steps": 3},
    "deco": {"every": 3},
    "diloco-workers": {"local_steps": 3, "fragments": 2, "coding": "int8"},
    "muloco": {"local_steps": 3},
    "sparseloco": {"local_steps": 3},
    "streaming-diloco": {"local_steps": 4, "overlap_steps": 1},
    "local-sgd": {"local_steps": 3},
    "hierarchical-local-sgd": {"local_steps": 2, "rounds": 2},
}
VECTORS = [name for name in SYSTEMS if not issubclass(SYSTEMS[name], ISGQ)]  # the task has no factors
QUICK = ("baseline", "terngrad", "weightgrad", "gaia", "diloco", "dgc", "allreduce", "concord", "deco")


@pytest.mark.parametrize("system", each_system(VECTORS, *QUICK))
def test_parts_of_a_step_fit_into_it(system: str) -> None:
    assert_parts_fit(system, UNEVEN)


links_of_any_kind = st.builds(Link, st.floats(0.1, 1000), st.floats(0, 200))


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["baseline", *OPTIONS]), links_of_any_kind, links_of_any_kind, links_of_any_kind)
def test_parts_fit_on_any_network(system: str, lan: Link, wan: Link, other: Link) -> None:
    assert_parts_fit(system, network(("a", "b", "c"), lan, wan, {("a", "c"): other, ("c", "a"): other}))
