"""Trace replay on the virtual clock: changes come exactly at their times."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from testbed.fabrics.base import Record, TraceEnded
from testbed.fabrics.virtual.network import Network
from testbed.record.events import Capacity
from testbed.wan.trace import Change, Trace


class Replay:
    """Sets the WAN's rates and delays as the clock passes the changes of a trace, from `clock_s` on.

    A change is no timer: a run that waits for nothing else is stuck, however long its trace goes on.
    """

    def __init__(self, trace: Trace | None, network: Network, clock_s: float, record: Record) -> None:
        self._network, self._record = network, record
        self._changes: Iterator[Change] = iter(())
        self._end_s = inf
        if trace is not None:
            done_s = clock_s if clock_s > 0 else -1.0  # a change at 0 is the first segment's to record
            for change in trace.at(done_s).values():
                self._set(change)
            self._changes = trace.after(done_s)
            self._end_s = inf if trace.end_s is None else trace.end_s
        self._next: Change | None = next(self._changes, None)
        self._apply(clock_s)

    @property
    def next_s(self) -> float:
        """When the trace changes something next, or ends; infinity for never."""
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
            self._set(change)
            self._record(
                Capacity(time_s=change.time_s, link=change.link, goodput_mbit=change.goodput_mbit, rtt_ms=change.rtt_ms)
            )
            self._next = next(self._changes, None)

    def _set(self, change: Change) -> None:
        self._network.set_rate(change.src, change.dst, change.goodput_mbit * 1e6 / 8)
        if change.delay_s is not None:
            self._network.set_delay(change.src, change.dst, change.delay_s)
