"""A run's schedule on the virtual clock: changes come exactly at their times."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from testbed.fabrics.base import Record, TraceEnded
from testbed.fabrics.virtual.network import Network
from testbed.faults import Break, Schedule, Turn, events_of
from testbed.record.events import Reset
from testbed.wan.trace import Change


class Replay:
    """Changes the WAN's links as the clock passes the changes of a schedule, from `clock_s` on.

    A change is no timer: a run that waits for nothing else is stuck, however long its schedule goes on.
    """

    def __init__(self, schedule: Schedule, network: Network, clock_s: float, record: Record) -> None:
        self._network, self._record = network, record
        done_s = clock_s if clock_s > 0 else -1.0  # a change at 0 is the first segment's to record
        for change in schedule.at(done_s):
            self._set(change)
        self._changes: Iterator[Change | Turn | Break] = schedule.after(done_s)
        self._end_s = inf if schedule.end_s is None else schedule.end_s
        self._next: Change | Turn | Break | None = next(self._changes, None)
        self._apply(clock_s)

    @property
    def next_s(self) -> float:
        """When the schedule changes something next, or ends the run; infinity for never."""
        return self._end_s if self._next is None else min(self._next.time_s, self._end_s)

    def pass_until(self, when_s: float) -> None:
        """Make the changes up to `when_s`, which must not be later than `next_s`.

        Raises
        ------
        TraceEnded
            The run is to end now.
        """
        self._apply(when_s)
        if when_s >= self._end_s:
            raise TraceEnded(self._end_s)

    def _apply(self, when_s: float) -> None:
        while (change := self._next) is not None and change.time_s <= when_s:
            if isinstance(change, Break):
                resent = self._network.reset(change.one, change.other, change.time_s)
                if resent is not None:
                    self._record(Reset(time_s=change.time_s, link=change.link, resent=resent))
            else:
                if isinstance(change, Change):
                    self._set(change)
                self._record(events_of(change, change.time_s))
            self._next = next(self._changes, None)

    def _set(self, change: Change) -> None:
        if change.cut is not None:
            act = self._network.cut if change.cut else self._network.heal
            act(change.src, change.dst, change.time_s)
            return
        self._network.set_rate(change.src, change.dst, change.goodput_mbit * 1e6 / 8)
        if change.delay_s is not None:
            self._network.set_delay(change.src, change.dst, change.delay_s)
