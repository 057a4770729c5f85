"""A server and clients that go on by themselves: one that is done before its server is waited for no more."""

from __future__ import annotations

import pytest
from scripted import play, send_words

from testbed.message import Message
from testbed.roles.attendance import Attendance, Tolerance
from testbed.roles.node import Node

TOLERANCE = Tolerance(quorum=1.0, patience_s=5.0)


async def told(step: int) -> Message:
    return Message("catch-up", step)


@pytest.mark.parametrize("ahead", [("a/w0",), ("a/w0", "a/w1")], ids=["one", "all"])
def test_a_client_whose_segment_is_over_is_waited_for_no_more(ahead: tuple[str, ...]) -> None:
    rounds: list[list[str]] = []

    async def worker(node: Node) -> None:
        for step in range(1 if node.name in ahead else 3):
            await node.send(node.lps, Message("gradient", step))
            await node.recv(node.lps)

    async def lps(node: Node) -> None:
        clients = Attendance(node, node.clients, TOLERANCE, told)
        for step in range(3):
            found = await clients.collect(step)
            rounds.append(list(clients.present))
            assert len(found) == len(clients.present)
            await node.broadcast(clients.present, Message("mean", step))
        await clients.end(2)

    others = [] if len(ahead) == 2 else ["a/w1"]
    _, clock_s = play({"a/w0": worker, "a/w1": worker, "a/lps": lps})
    assert rounds == [["a/w0", "a/w1"], others, others]
    assert clock_s < TOLERANCE.patience_s, "it was waited for"


def test_words_that_are_of_no_round_are_told_where_all_are() -> None:
    heard: list[str] = []

    async def worker(node: Node) -> None:
        await send_words(node, node.lps, "late")
        heard.append((await node.recv(node.lps)).kind)

    async def lps(node: Node) -> None:
        clients = Attendance(node, node.clients, TOLERANCE, told)
        await clients.end(0)

    play({"a/w0": worker, "a/lps": lps})
    assert heard == ["catch-up"]
