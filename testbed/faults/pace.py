"""How fast a role goes over a run: a pace of 1, unless faults slow or stop it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import inf


class Pace:
    """A role's pace, a step function of the run's clock.

    Parameters
    ----------
    changes : from when on which pace is in force, in order of time, without end perhaps; 1 before the first
    """

    def __init__(self, changes: Iterator[tuple[float, float]]) -> None:
        self._changes = changes
        self._since_s, self._paces = [0.0], [1.0]
        self._known_s = 0.0  # up to here all changes are in the lists

    def done_s(self, now_s: float, seconds: float) -> float:
        """When a computation that begins now and takes `seconds` at a pace of 1 is done; infinity for never."""
        while seconds:
            pace, until_s = self._at(now_s)
            if seconds <= (until_s - now_s) * pace:
                return now_s + seconds / pace
            if until_s == inf:
                return inf
            seconds -= (until_s - now_s) * pace
            now_s = until_s
        return now_s

    def awake_s(self, now_s: float) -> float:
        """When the role does something next: now, unless it stands still; infinity for never."""
        while True:
            pace, until_s = self._at(now_s)
            if pace or until_s == inf:
                return now_s if pace else inf
            now_s = until_s

    def _at(self, now_s: float) -> tuple[float, float]:
        """The pace now, and until when."""
        while self._known_s <= now_s and self._known_s < inf:
            self._known_s, pace = next(self._changes, (inf, self._paces[-1]))
            if self._known_s < inf:
                self._since_s.append(self._known_s)
                self._paces.append(pace)
        place = bisect_right(self._since_s, now_s)
        return self._paces[place - 1], self._since_s[place] if place < len(self._since_s) else inf
