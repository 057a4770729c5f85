"""Trace replay on running traffic: each change at its own absolute time, so that lateness does not add up."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag
from threading import Thread
from time import monotonic

from testbed.record.events import Capacity
from testbed.wan.trace import Trace


class TracePlayer:
    """Applies a trace in a thread of its own until it is stopped.

    Parameters
    ----------
    set_rate : changes one WAN link: source region, destination region, goodput in Mbit/s before dilation
    clock_s : what the run's clock shows at `start_s` on the monotonic clock
    dilation : real seconds per second of the run's clock
    """

    def __init__(
        self,
        trace: Trace,
        set_rate: Callable[[str, str, float], None],
        clock_s: float,
        start_s: float,
        dilation: float,
    ) -> None:
        self._trace, self._set_rate = trace, set_rate
        self._clock_s, self._start_s, self._dilation = clock_s, start_s, dilation
        self._applied: list[Capacity] = []
        self._failure: BaseException | None = None
        self._stop = Flag()
        for (src, dst), goodput_mbit in trace.at(clock_s).items():
            set_rate(src, dst, goodput_mbit)
        self._thread = Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def _now(self) -> float:
        return self._clock_s + (monotonic() - self._start_s) / self._dilation

    def _run(self) -> None:
        try:
            for change in self._trace.after(self._clock_s):
                if self._stop.wait(max(change.time_s - self._now(), 0.0) * self._dilation):
                    return
                self._set_rate(change.src, change.dst, change.goodput_mbit)
                now_s = self._now()
                self._applied.append(
                    Capacity(
                        time_s=now_s,
                        link=f"{change.src}>{change.dst}",
                        goodput_mbit=change.goodput_mbit,
                        late_s=now_s - change.time_s,
                    )
                )
        except BaseException as error:  # told to the run when it stops the player
            self._failure = error

    def stop(self) -> list[Capacity]:
        """End the replay and return the changes made; raises what made it fail."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._applied
