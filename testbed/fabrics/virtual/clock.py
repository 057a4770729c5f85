"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf, ulp
from typing import Any, Protocol

from testbed.errors import RunError


class Engine(Protocol):
    """Something that happens at instants of its own, beside the loop's timers, such as a network."""

    def next_event_s(self) -> float:
        """When something happens next if nobody acts before; infinity for never."""

    def advance(self) -> None:
        """Let happen what is due at the loop's present time."""


class _JumpingSelector(selectors.BaseSelector):
    """Selects nothing, ever: being asked to wait means the clock may move."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s
        self.next_timer: Callable[[], float]
        self.engine: Engine | None = None
        self.on_deadlock: Callable[[], str] = lambda: "nothing is scheduled"
        self.before_jump: Callable[[float], float] = lambda when_s: when_s
        self.when_stuck: Callable[[], float] = lambda: inf
        self._keys: dict[int, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return []
        when_s = inf if timeout is None else self.next_timer()  # not now + timeout, which would round
        if self.engine is not None:
            when_s = min(when_s, self.engine.next_event_s())
        if when_s == inf:
            when_s = self.when_stuck()
        if when_s == inf:
            raise RunError(f"the run is stuck: {self.on_deadlock()}")
        self.now_s = self.before_jump(when_s)
        if self.engine is not None:
            self.engine.advance()
        return []

    # The loop registers its own wake-up pipe, which nobody writes to here: kept, never watched.

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[descriptor] = key = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers, timeouts and cancellation behave as in real time; `time()` is virtual and starts at `start_s`.

    Parameters
    ----------
    start_s : the clock's first value
    on_deadlock : says who waits for whom when nothing can ever happen again
    before_jump : called with the instant the clock is about to jump to; returns that, or an earlier one to stop at
        on the way
    when_stuck : when something from outside happens where nothing else is to come; infinity for never

    Raises
    ------
    RunError
        From `run_until_complete`: every coroutine waits for another.
    """

    def __init__(
        self,
        start_s: float = 0.0,
        on_deadlock: Callable[[], str] | None = None,
        before_jump: Callable[[float], float] | None = None,
        when_stuck: Callable[[], float] | None = None,
    ) -> None:
        self._jumping = _JumpingSelector(start_s)
        self._jumping.next_timer = lambda: self._scheduled[0].when()  # type: ignore[attr-defined]
        if on_deadlock is not None:
            self._jumping.on_deadlock = on_deadlock
        if before_jump is not None:
            self._jumping.before_jump = before_jump
        if when_stuck is not None:
            self._jumping.when_stuck = when_stuck
        super().__init__(self._jumping)

    def drive(self, engine: Engine) -> None:
        """Stop at the instants of `engine`, too; it costs less than a timer for each."""
        self._jumping.engine = engine

    @property
    def _clock_resolution(self) -> float:
        """asyncio runs timers less than this ahead of the clock; the next float up means exactly those now due."""
        return ulp(self._jumping.now_s)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        pass

    def time(self) -> float:
        return self._jumping.now_s


def shut(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left on the loop and close it, whatever state a failure left it in.

    An interrupt may have come when the loop had taken a task off its list and not begun it: such a one waits for ever.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.set_exception_handler(lambda loop, context: None)  # which would hear of such a one
    with suppress(RunError):
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
