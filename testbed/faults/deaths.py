"""When a role is dead over a run: from when faults kill it until none keeps it down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Protocol


@dataclass(frozen=True)
class Death:
    """A role is dead from `at_s` to `until_s` on the run's clock; then it begins as it was, or `fresh`."""

    at_s: float
    until_s: float
    fresh: bool


class Turned(Protocol):
    """A fault begins or is over."""

    @property
    def time_s(self) -> float: ...

    @property
    def number(self) -> int: ...

    @property
    def over(self) -> bool: ...


class Deaths:
    """A role's deaths, in order of time, without end perhaps.

    Parameters
    ----------
    turns : gives, each time anew, when the faults that kill it begin and are over
    fresh : whether the role begins with nothing that it remembered after the fault of a number
    """

    def __init__(self, turns: Callable[[], Iterable[Turned]], fresh: Callable[[int], bool]) -> None:
        self._turns, self._fresh = turns, fresh

    def at(self, now_s: float) -> Death | None:
        """The one that the role is in at a moment."""
        for death in self._all():
            if death.at_s > now_s:
                return None
            if death.until_s > now_s:
                return death
        return None

    def after(self, now_s: float) -> Death | None:
        """The first that begins later than a moment."""
        return next((death for death in self._all() if death.at_s > now_s), None)

    def _all(self) -> Iterator[Death]:
        down: dict[int, None] = {}
        at_s, fresh = 0.0, False
        for turn in self._turns():
            if not turn.over:
                if not down:
                    at_s, fresh = turn.time_s, False
                down[turn.number] = None
                fresh = fresh or self._fresh(turn.number)
            elif turn.number in down:
                del down[turn.number]
                if not down:
                    yield Death(at_s, turn.time_s, fresh)
        if down:
            yield Death(at_s, inf, fresh)
