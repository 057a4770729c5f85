"""A schedule on running traffic: each change at its own absolute time, so that lateness does not add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from threading import Event as Flag
from threading import Thread
from time import monotonic
from typing import Any

from testbed.faults import Break, Schedule, Turn, events_of
from testbed.record.events import Capacity, Cut, Event
from testbed.wan.trace import LATE_S, Change


class TracePlayer:
    """Plays a schedule in a thread of its own until it is stopped.

    What is due when the run's clock starts is in force when this returns. `done_s` is the last change's own time.

    Parameters
    ----------
    apply : makes a change of one WAN link (figures before dilation)
    reset : resets a connection, and records that it did
    done_s : the changes up to this time on the run's clock have been made, and are made again without being told
    clock_s : what the run's clock shows at `start_s` on the monotonic clock
    dilation : real seconds per second of the run's clock
    """

    def __init__(
        self,
        schedule: Schedule,
        apply: Callable[[Change], None],
        done_s: float,
        clock_s: float,
        start_s: float,
        dilation: float,
        reset: Callable[[Break], None],
    ) -> None:
        self.done_s, self._apply, self._reset = done_s, apply, reset
        self._clock_s, self._start_s, self._dilation = clock_s, start_s, dilation
        self._applied: list[Event] = []
        self._failure: BaseException | None = None
        self._stop = Flag()
        for change in schedule.at(done_s):
            apply(change)
        for due in takewhile(lambda change: change.time_s <= clock_s, schedule.after(done_s)):
            self._make(due)
        following = schedule.after(max(done_s, clock_s))
        self._thread = Thread(target=self._run, args=(following,), name="trace", daemon=True)
        self._thread.start()

    def _now(self) -> float:
        return max(self._clock_s, self._clock_s + (monotonic() - self._start_s) / self._dilation)

    def _run(self, changes: Iterator[Change | Turn | Break]) -> None:
        try:
            for change in changes:
                due_s = self._start_s + (change.time_s - self._clock_s) * self._dilation
                if self._stop.wait(max(due_s - monotonic(), 0.0)):
                    return
                self._make(change)
        except BaseException as error:  # told to the run when it stops the player
            self._failure = error

    def _make(self, change: Change | Turn | Break) -> None:
        if isinstance(change, Break):
            self._reset(change)
            self.done_s = change.time_s
            return
        if isinstance(change, Change):
            self._apply(change)
        self.done_s, now_s = change.time_s, self._now()
        self._applied.append(events_of(change, now_s, now_s - change.time_s))

    def watch(self) -> None:
        """Raise what made the replay fail, if anything has."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> list[Event]:
        """End the replay and return the changes made; raises what made it fail."""
        self._stop.set()
        self._thread.join()
        self.watch()
        return self._applied


class Lateness:
    """How late the changes of a run's schedules came, on the run's clock."""

    def __init__(self) -> None:
        self._changes = self._late = 0
        self._max_s = 0.0

    def add(self, made: Event) -> None:
        if not isinstance(made, Capacity | Cut):
            return
        self._changes += 1
        self._late += made.late_s > LATE_S
        self._max_s = max(self._max_s, made.late_s)

    def report(self) -> dict[str, Any]:
        """`trace_changes`, of them `trace_late` by more than `LATE_S`, `trace_late_max_ms`; empty without any."""
        if not self._changes:
            return {}
        return {
            "trace_changes": self._changes,
            "trace_late": self._late,
            "trace_late_max_ms": round(1e3 * self._max_s, 3),
        }
