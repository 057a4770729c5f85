"""Resets connections between actors while a segment plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import ray

from testbed.faults import Break
from testbed.record.events import Event, Reset

AT_ONCE = 16
BOUND_S = 300.0  # an end that computes does not answer meanwhile


class Resets:
    """Within it connections are reset; what has begun is done, and recorded, when it ends.

    Parameters
    ----------
    actors : by role, those that have a part in the system that is played
    now_s : what the run's clock shows
    """

    def __init__(self, actors: Mapping[str, Any], now_s: Callable[[], float], record: Callable[[Event], None]) -> None:
        self._actors, self._now_s, self._record = actors, now_s, record
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._begun: list[Future[Reset]] = []

    def begin(self, change: Break) -> None:
        """Reset the connection between two roles, where both take part."""
        if change.one in self._actors and change.other in self._actors:
            self._begun.append(self._pool.submit(self._reset, change))

    def _reset(self, change: Break) -> Reset:
        one, other = self._actors[change.one], self._actors[change.other]
        ray.get([one.break_off.remote(change.other), other.break_off.remote(change.one)], timeout=BOUND_S)
        late_s = self._now_s() - change.time_s
        opened = [one.connect_anew.remote(change.other), other.connect_anew.remote(change.one)]
        resent = sum(ray.get(opened, timeout=BOUND_S))
        return Reset(time_s=change.time_s + late_s, link=change.link, resent=resent, late_s=late_s)

    def __enter__(self) -> Resets:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(wait=error is None, cancel_futures=True)
        if error is None:
            for reset in self._begun:
                self._record(reset.result())
