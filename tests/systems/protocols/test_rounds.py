"""The global server's rounds by themselves, against a node that only notes what it is told to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.message import Message
from testbed.record.events import Exchange, Guard
from testbed.systems.protocols.rounds import Rounds

LPSS = ("a/lps", "b/lps")
AVERAGE_S = 0.01


@dataclass
class State:
    round: int = 0
    last_round_s: float = 0.0


class Bench:
    """Stands for a node on the virtual clock. `sent` has (time, peer, kind, round)."""

    name, lpss = "c/gs", LPSS

    def __init__(self, t_local_s: float, t_global_s: float) -> None:
        self.loop = VirtualLoop()
        self.sent: list[tuple[float, str, str, int]] = []
        self.events: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ended = False
        self._settings = (t_local_s, t_global_s)

    def now(self) -> float:
        return round(self.loop.time(), 9)

    def call_later(self, seconds: float, fn: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, fn)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.loop.create_task(work))

    def all_ended(self, peers: Sequence[str]) -> bool:
        return self.ended

    def record(self, event: Any) -> None:
        self.events.append(event)

    async def send(self, peer: str, message: Message) -> None:
        self.sent.append((self.now(), peer, message.kind, message.step))

    def run(self, script: Callable[[Rounds], Coroutine[Any, Any, None]], until_s: float = 100.0) -> None:
        async def average(messages: Sequence[Message], number: int) -> Sequence:
            assert messages
            await asyncio.sleep(AVERAGE_S)
            return ()

        async def play() -> None:
            rounds = Rounds(self, State(), *self._settings, average)  # type: ignore[arg-type]
            await script(rounds)
            await asyncio.sleep(until_s - self.loop.time())
            rounds.end()
            for task in self.tasks:
                await task

        self.loop.run_until_complete(play())
        self.loop.close()

    @property
    def exchanges(self) -> list[tuple[float, str, list[str]]]:
        return [(each.time_s, each.reason, each.included) for each in self.events if isinstance(each, Exchange)]

    @property
    def guards(self) -> list[tuple[float, str, str, float | None]]:
        found = [event for event in self.events if isinstance(event, Guard)]
        return [(each.time_s, each.guard, each.peer, each.held_s) for each in found]


def update(reason: str = "significant") -> Message:
    return Message(reason)


async def at(bench: Bench, when_s: float) -> None:
    await asyncio.sleep(when_s - bench.loop.time())


def test_the_first_contribution_opens_a_round_and_the_last_closes_it() -> None:
    bench = Bench(10, 50)

    async def script(rounds: Rounds) -> None:
        await at(bench, 1)
        await rounds.contributed("b/lps", update())
        assert rounds.busy()
        await at(bench, 2)
        await rounds.contributed("a/lps", update("asked"))
        for peer in LPSS:
            assert rounds.busy()
            await rounds.acknowledged(peer)
        assert not rounds.busy()

    bench.run(script, until_s=20)
    assert bench.sent == [
        (1, "a/lps", "request", 1),
        (2 + AVERAGE_S, "a/lps", "mean", 1),
        (2 + AVERAGE_S, "b/lps", "mean", 1),
    ]
    assert bench.exchanges == [(2, "significant", ["a", "b"])]
    assert bench.guards == []


def test_t_global_closes_a_round_without_the_late_one_which_opens_the_next() -> None:
    bench = Bench(1000, 5)

    async def script(rounds: Rounds) -> None:
        await rounds.contributed("a/lps", update())
        await at(bench, 7)
        await rounds.contributed("b/lps", update("asked"))
        await at(bench, 8)
        await rounds.contributed("a/lps", update("asked"))

    bench.run(script, until_s=12)
    assert bench.exchanges == [(5, "significant", ["a"]), (8, "asked", ["a", "b"])]
    assert bench.guards == [(5, "T_global", "b/lps", None)]
    assert (7, "a/lps", "request", 2) in bench.sent


def test_t_global_opens_a_round_when_nothing_happens() -> None:
    bench = Bench(1000, 5)

    async def script(rounds: Rounds) -> None:
        await at(bench, 6)
        for peer in LPSS:
            await rounds.contributed(peer, update("asked"))

    bench.run(script, until_s=9)
    assert bench.sent[:2] == [(5, "a/lps", "request", 1), (5, "b/lps", "request", 1)]
    assert bench.exchanges == [(6, "t-global", ["a", "b"])]


def test_t_global_neither_opens_nor_closes_once_all_segments_have_ended() -> None:
    bench = Bench(1000, 5)

    async def script(rounds: Rounds) -> None:
        await rounds.contributed("a/lps", update())
        bench.ended = True
        await at(bench, 20)
        await rounds.contributed("b/lps", update("asked"))

    bench.run(script, until_s=60)
    assert bench.exchanges == [(20, "significant", ["a", "b"])]
    assert [kind for _, _, kind, _ in bench.sent] == ["request", "mean", "mean"]


def test_the_last_contribution_at_the_instant_t_global_is_over() -> None:
    """The round is closed once, with the contribution or without it."""
    bench = Bench(1000, 5)

    async def script(rounds: Rounds) -> None:
        await rounds.contributed("a/lps", update())
        await asyncio.sleep(5)
        await rounds.contributed("b/lps", update("asked"))

    bench.run(script, until_s=6)
    assert bench.exchanges in ([(5, "significant", ["a", "b"])], [(5, "significant", ["a"])])


def test_a_contribution_that_arrives_right_after_the_timer_is_for_the_next_round() -> None:
    """The timer's round is closed at once, not when its task comes to run."""
    bench = Bench(1000, 5)

    async def script(rounds: Rounds) -> None:
        await rounds.contributed("a/lps", update())
        await at(bench, 4)
        rounds._t_global_is_over()
        await rounds.contributed("b/lps", update("asked"))
        assert rounds.busy()

    bench.run(script, until_s=6)
    assert bench.exchanges == [(4, "significant", ["a"])]
    assert [sent for sent in bench.sent if sent[3] == 2] == [(4, "a/lps", "request", 2)]


def test_two_means_may_be_unacknowledged_at_once() -> None:
    bench = Bench(6, 2)

    async def script(rounds: Rounds) -> None:
        for _ in range(2):
            await rounds.contributed("a/lps", update())
            await asyncio.sleep(3)  # T_global closes the round without b
            await rounds.acknowledged("a/lps")
        await rounds.acknowledged("b/lps")
        assert rounds.busy()
        await rounds.acknowledged("b/lps")
        assert not rounds.busy()
        bench.ended = True

    bench.run(script, until_s=30)
    assert [guard for guard in bench.guards if guard[1] == "T_local"] == []


def test_t_local_holds_what_goes_to_the_others_until_the_late_one_has_caught_up() -> None:
    bench = Bench(3, 1000)

    async def script(rounds: Rounds) -> None:
        for peer in LPSS:
            await rounds.contributed(peer, update())
        await rounds.acknowledged("a/lps")
        await at(bench, 5)
        await rounds.contributed("b/lps", update())
        await at(bench, 7)
        await rounds.acknowledged("b/lps")
        await rounds.contributed("a/lps", update("asked"))
        for peer in LPSS:
            await rounds.acknowledged(peer)
        assert not rounds.busy()

    bench.run(script, until_s=20)
    assert bench.guards == [(3 + AVERAGE_S, "T_local", "b/lps", None), (7, "T_local", "b/lps", 4 - AVERAGE_S)]
    assert [sent[:3] for sent in bench.sent if sent[1] == "a/lps"] == [
        (AVERAGE_S, "a/lps", "mean"),
        (7, "a/lps", "request"),
        (7 + AVERAGE_S, "a/lps", "mean"),
    ]
