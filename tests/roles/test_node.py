"""The rules that every training system relies on (`testbed.roles.node`), seen on the virtual fabric."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest
from scripted import ROLES, Play, Steps, play, send_words, word

from testbed.errors import PeerLost, PeerTimeout, ProtocolError, RoleDied, RunError
from testbed.message import Message
from testbed.record.events import Sent, StepDone
from testbed.roles.mailbox import Mailbox
from testbed.roles.node import MARKER
from testbed.systems import Node, Work
from testbed.wan.trace import Change, Trace

# Rule 1: order


def test_messages_of_one_peer_arrive_in_the_order_they_were_sent() -> None:
    heard: list[str] = []

    async def worker(node: Node) -> None:
        await send_words(node, node.lps, *(str(number) for number in range(40)))

    async def lps(node: Node) -> None:
        for _ in range(40):
            heard.append((await node.recv("a/w1")).kind)

    play({"a/w1": worker, "a/lps": lps})
    assert heard == [str(number) for number in range(40)]


def after(seconds: float, *words: str) -> Play:
    """A worker that waits and then speaks to its LPS."""

    async def worker(node: Node) -> None:
        await node.sleep(seconds)
        await send_words(node, node.lps, *words)

    return worker


def test_gather_takes_one_message_of_each_in_order_of_arrival_and_collect_in_order_of_peers() -> None:
    found: list[Any] = []

    async def lps(node: Node) -> None:
        found.append([(peer, message.kind) async for peer, message in node.gather(node.workers)])
        found.append([message.kind for message in await node.collect(node.workers)])

    play({"a/w0": after(2, "slow", "slow again"), "a/w1": after(1, "fast", "fast again"), "a/lps": lps})
    assert found == [[("a/w1", "fast"), ("a/w0", "slow")], ["slow again", "fast again"]]


def test_a_second_message_of_a_fast_peer_waits_for_the_next_gather() -> None:
    found: list[list[str]] = []

    async def lps(node: Node) -> None:
        await node.sleep(5)
        for _ in range(2):
            found.append([message.kind async for _, message in node.gather(node.workers)])

    play({"a/w0": after(0, "1", "2"), "a/w1": after(1, "1", "2"), "a/lps": lps})
    assert found == [["1", "1"], ["2", "2"]]


# Waiting


def test_recv_gives_up_after_its_timeout_and_nothing_is_lost() -> None:
    found: list[Any] = []

    async def lps(node: Node) -> None:
        try:
            await node.recv("a/w0", timeout=0.5)
        except PeerTimeout as error:
            found.append((str(error), node.now()))
        found.append((await node.recv("a/w0", timeout=2)).kind)

    play({"a/w0": after(1, "late"), "a/lps": lps})
    assert found == [("a/lps had no message from a/w0 in time", 0.5), "late"]


def test_a_timeout_in_gather_names_who_is_missing() -> None:
    async def lps(node: Node) -> None:
        await node.collect(node.workers, timeout=1)

    with pytest.raises(RoleDied, match="a/lps failed: a/lps had no message from a/w1 in time"):
        play({"a/w0": after(0, "here"), "a/w1": after(3, "late"), "a/lps": lps})


def test_two_readers_of_one_peer_are_an_error() -> None:
    async def lps(node: Node) -> None:
        async def background() -> None:
            await node.recv("a/w0")

        node.spawn(background())
        await node.sleep(0.1)
        await node.collect(node.workers)

    with pytest.raises(RoleDied, match="two coroutines read from a/w0 at once"):
        play({"a/w0": after(1, "x"), "a/w1": after(1, "x"), "a/lps": lps})


def test_only_neighbours_can_be_read_from() -> None:
    async def worker(node: Node) -> None:
        await node.recv("b/lps")

    with pytest.raises(RoleDied, match="b/lps is not a neighbour; neighbours: a/lps"):
        play({"a/w0": worker})


def test_a_lost_peer_is_an_error_once_what_it_left_has_been_read() -> None:
    async def reading() -> None:
        mailbox = Mailbox(["peer"])
        mailbox.deliver("peer", word("last"))
        mailbox.lose("peer", "connection reset")
        reader = mailbox.open(["peer"])
        assert reader.take()[1].kind == "last"
        with pytest.raises(PeerLost, match="peer: connection reset"):
            await reader.wait()

    asyncio.run(reading())


def test_losing_a_peer_wakes_who_waits_for_it() -> None:
    async def reading() -> None:
        mailbox = Mailbox(["peer"])
        reader = mailbox.open(["peer"])
        waiting = asyncio.create_task(reader.wait())
        await asyncio.sleep(0)
        mailbox.lose("peer", "gone")
        await waiting
        with pytest.raises(PeerLost):
            reader.take()

    asyncio.run(reading())


ENDLESS = Trace("endless", (Change(1.0, "a", "c", 50.0),), period_s=2.0)


@pytest.mark.parametrize("trace", [None, ENDLESS], ids=["", "while a trace goes on for ever"])
def test_a_deadlock_is_an_error_that_says_who_waits_for_whom(trace: Trace | None) -> None:
    async def worker(node: Node) -> None:
        await node.recv(node.lps)

    async def lps(node: Node) -> None:
        await node.collect(node.workers)

    with pytest.raises(RunError, match="the run is stuck") as raised:
        play({"a/w0": worker, "a/w1": after(1, "here"), "a/lps": lps}, trace=trace)
    assert "a/lps for a/w0" in str(raised.value)
    assert "a/w0 for a/lps" in str(raised.value)


# Rule 2: compute


def test_compute_runs_at_once_and_its_time_passes_afterwards() -> None:
    done: list[tuple[str, float]] = []

    async def worker(node: Node) -> None:
        result = await node.compute(Work(flops=90e9), lambda: done.append(("ran", node.now())) or 7)
        done.append((f"got {result}", node.now()))
        assert node.ledger.busy_s == node.now()

    play({"a/w0": worker})
    assert done == [("ran", 0.0), ("got 7", pytest.approx(2.0005))]  # an M60's 45 GFLOP/s, and 0.5 ms to launch


def test_measured_compute_takes_what_it_took() -> None:
    async def worker(node: Node) -> None:
        await node.compute(Work(flops=1e30), sum, range(1000))
        assert 0 < node.now() < 1

    play({"a/w0": worker}, device="measured")


# Rules 3 and 4: segments


def test_steps_end_with_the_segment_and_go_on_in_the_next() -> None:
    steps: dict[str, list[tuple[int, float]]] = {name: [] for name in ROLES.all}
    states = {name: Steps() for name in ROLES.all}

    async def role(node: Node) -> None:
        async for step in node.steps(states[node.name]):
            steps[node.name].append((step, node.now()))
            await node.sleep(2.0 if node.name == "a/w0" else 1.0)

    _, clock_s = play(dict.fromkeys(ROLES.all, role), stops=(3, 5))
    for name, seen in steps.items():
        assert [step for step, _ in seen] == [0, 1, 2, 3, 4], name
        assert seen[3][1] >= 6, "all wait for the slowest"
    assert clock_s >= 10


def test_no_message_is_in_flight_at_a_boundary() -> None:
    """What is sent last before a boundary, over the slowest path, has been read by its end."""
    heard: list[str] = []

    async def lps(node: Node) -> None:
        if node.stop_at == 1:
            await send_words(node, node.global_server, "one", "two")

    async def global_server(node: Node) -> None:
        async def listen() -> None:
            async for _, message in node.serve(node.lpss):
                heard.append(f"{message.kind} in {node.stop_at}")

        node.spawn_server(listen())

    play({"a/lps": lps, "c/gs": global_server}, stops=(1, 2))
    assert heard == ["one in 1", "two in 1"]


def test_a_message_nobody_reads_is_an_error() -> None:
    async def worker(node: Node) -> None:
        await send_words(node, node.lps, "forgotten")

    with pytest.raises(RoleDied, match="a/lps left a message 'forgotten' of a/w0 unread"):
        play({"a/w0": worker})


def test_waiting_for_a_peer_whose_segment_has_ended_is_an_error() -> None:
    async def lps(node: Node) -> None:
        await node.recv("a/w0")

    with pytest.raises(RoleDied, match="a/lps waits for a message of a/w0, whose segment has ended"):
        play({"a/lps": lps})


def test_background_work_is_finished_before_a_boundary() -> None:
    finished: list[float] = []

    async def worker(node: Node) -> None:
        async def background() -> None:
            await node.sleep(3)
            finished.append(node.now())

        node.spawn(background())

    _, clock_s = play({"a/w0": worker})
    assert finished == [3.0]
    assert clock_s >= 3


@pytest.mark.parametrize("spawn", ["spawn", "spawn_server"])
def test_background_work_that_fails_ends_the_role_at_once(spawn: str) -> None:
    async def worker(node: Node) -> None:
        async def background() -> None:
            await node.sleep(1)
            raise ValueError("broken")

        getattr(node, spawn)(background())
        await node.sleep(1000)

    with pytest.raises(RoleDied, match="a/w0 failed: ValueError: broken") as raised:
        play({"a/w0": worker})
    assert "in background" in raised.value.__notes__[0]  # the traceback, for the log


def test_serve_ends_when_its_peers_have_ended_and_nothing_is_owed() -> None:
    """The server still owes an answer to the last question when the asker's segment has ended."""
    owed: list[str] = []
    answers: list[str] = []

    async def lps(node: Node) -> None:
        async def listen() -> None:
            async for peer, message in node.serve([node.global_server]):
                answers.append(message.kind)
                await node.send(peer, word("thanks"))

        node.spawn_server(listen())
        await node.send(node.global_server, word("question"))

    async def global_server(node: Node) -> None:
        async def answer(peer: str) -> None:
            await node.sleep(5)
            await node.send(peer, word("answer"))

        async for peer, message in node.serve(node.lpss, lambda: bool(owed)):
            if message.kind == "question":
                owed.append(peer)
                node.spawn(answer(peer))
            else:
                owed.remove(peer)

    play({"a/lps": lps, "b/lps": lps, "c/gs": global_server})
    assert answers == ["answer", "answer"]


def test_an_exception_in_a_role_names_it() -> None:
    async def lps(node: Node) -> None:
        await node.sleep(1)
        raise ProtocolError("what is this")

    with pytest.raises(RoleDied, match="b/lps failed: what is this"):
        play({"b/lps": lps})


# Records


def test_what_was_sent_is_recorded_per_peer_and_segment() -> None:
    async def worker(node: Node) -> None:
        if node.stop_at == 1:
            await send_words(node, node.lps, "x", "x")

    async def lps(node: Node) -> None:
        if node.stop_at == 1:
            for _ in range(2):
                await node.recv("a/w0")

    events, _ = play({"a/w0": worker, "a/lps": lps}, stops=(1, 2))
    sent = [(event.messages, event.nbytes) for event in events if isinstance(event, Sent) and event.node == "a/w0"]
    marker = Message(MARKER, 1).nbytes
    assert sent == [(3, 2 * word("x").nbytes + marker), (1, marker)]


def test_step_done_says_what_the_step_was_charged() -> None:
    async def worker(node: Node) -> None:
        for step in range(2):
            await node.compute(Work(flops=45e9 * (step + 1)), int)
            await node.sleep(10)
            node.step_done(step, loss=0.5)

    events, _ = play({"a/w0": worker})
    found = [(event.step, event.compute_s, event.time_s) for event in events if isinstance(event, StepDone)]
    assert found == [
        (0, pytest.approx(1.0005), pytest.approx(11.0005)),
        (1, pytest.approx(2.0005), pytest.approx(23.001)),
    ]


def test_roles_that_are_stopped_before_their_first_step_leave_no_warning() -> None:
    """As Ctrl-C stops them at the beginning of a segment; Python warns of a coroutine that is never awaited."""

    async def interrupted(node: Node) -> None:
        raise KeyboardInterrupt

    async def idle(node: Node) -> None:
        pass

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            play({"a/w0": interrupted, "a/w1": idle, "a/lps": idle})
        gc.collect()
    assert not [str(each.message) for each in said if "never awaited" in str(each.message)]
