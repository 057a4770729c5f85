"""The virtual loop: timers, timeouts and cancellation as in real time, only that no time passes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Coroutine
from math import nextafter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import RunError
from testbed.fabrics.virtual.clock import VirtualLoop, shut


def play(coroutine: Coroutine[Any, Any, Any], start_s: float = 0.0, **hooks: Any) -> tuple[Any, float]:
    """The coroutine's result and what the clock shows then."""
    loop = VirtualLoop(start_s, **hooks)
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        loop.close()


def test_sleeping_takes_exactly_the_time_it_says() -> None:
    async def role() -> list[float]:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(1e6)
        seen = [clock()]
        await asyncio.sleep(0.25)
        return [*seen, clock()]

    assert play(role(), start_s=3.0) == ([1e6 + 3, 1e6 + 3.25], 1e6 + 3.25)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20), st.sampled_from([0.0, 1.0, 1e6, 1e15]))
def test_timers_run_in_order_each_at_its_own_instant(delays_s: list[float], start_s: float) -> None:
    async def role() -> list[tuple[float, float]]:
        loop, seen = asyncio.get_running_loop(), []
        for delay_s in delays_s:
            loop.call_at(start_s + delay_s, lambda when: seen.append((when, loop.time())), start_s + delay_s)
        await asyncio.sleep(2e9)
        return seen

    seen, _ = play(role(), start_s)
    assert seen == sorted((start_s + delay_s, start_s + delay_s) for delay_s in delays_s)


def test_two_timers_that_differ_by_one_bit_are_two_instants() -> None:
    async def role() -> list[float]:
        loop, seen = asyncio.get_running_loop(), []
        for when in (nextafter(1e6, 2e6), 1e6):
            loop.call_at(when, lambda: seen.append(loop.time()))
        await asyncio.sleep(2e6)
        return seen

    assert play(role())[0] == [1e6, nextafter(1e6, 2e6)]


def test_a_large_clock_that_a_small_delay_does_not_move_goes_on() -> None:
    async def role() -> int:
        for _ in range(1000):
            await asyncio.sleep(1e-9)
        return 7

    assert play(role(), start_s=1e12) == (7, 1e12)


def test_timeouts_and_cancellation() -> None:
    async def role() -> list[str]:
        seen = []
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(3)
        except TimeoutError:
            seen.append(f"timeout at {asyncio.get_running_loop().time():g}")
        async with asyncio.timeout(2):
            await asyncio.sleep(1)
        task = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            seen.append(f"cancelled at {asyncio.get_running_loop().time():g}")
        return seen

    assert play(role()) == (["timeout at 2", "cancelled at 4"], 4.0)


def test_nothing_that_can_happen_is_an_error_and_says_who_waits() -> None:
    async def role() -> None:
        await asyncio.sleep(5)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RunError, match="the run is stuck: a waits for b"):
        play(role(), on_deadlock=lambda: "a waits for b")


def test_each_jump_is_announced_and_can_be_cut_short() -> None:
    jumps: list[float] = []

    def before_jump(when_s: float) -> float:
        jumps.append(when_s)
        return 4.0 if jumps == [3.0, 5.0] else when_s

    async def role() -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # no jump
            await asyncio.sleep(2)

    assert play(role(), start_s=1.0, before_jump=before_jump) == (None, 7.0)
    assert jumps == [3.0, 5.0, 5.0, 7.0]


def test_a_task_whose_turn_an_interrupt_has_swallowed_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture):
    """asyncio takes a task off its list, and before it begins it Ctrl-C is pressed: nothing comes back to that task."""
    loop, ended = VirtualLoop(), []
    answer = loop.create_future()

    async def wait(awaited: Awaitable[None]) -> None:
        try:
            await awaited
        finally:
            ended.append(loop.time())

    lost, other = (loop.create_task(wait(awaited)) for awaited in (answer, asyncio.sleep(1.0)))
    loop.run_until_complete(asyncio.sleep(0.5))
    answer.set_result(None)
    loop._ready.clear()  # type: ignore[attr-defined]
    shut(loop)
    assert loop.is_closed() and other.cancelled() and ended == [0.5] and not lost.done()
    del lost
    gc.collect()
    assert not caplog.records
