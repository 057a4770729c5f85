"""What is going on, put together from the events of a run as they come: whole steps, and each link's rate."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.events import LinkBytes, StepDone


@dataclass(frozen=True)
class Step:
    """A step that every worker has finished: `done` steps so far, the mean loss, and when the last worker did, in s."""

    done: int
    loss: float
    time_s: float


class Steps:
    """Gathers what the workers report of a step."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._reports: dict[int, list[StepDone]] = {}

    def add(self, event: StepDone) -> Step | None:
        """The step, once its last worker has reported it."""
        reports = self._reports.setdefault(event.step, [])
        reports.append(event)
        if len(reports) < self._workers and sum(report.workers for report in reports) < self._workers:
            return None
        del self._reports[event.step]
        loss = sum(report.loss for report in reports) / len(reports)
        return Step(event.step + 1, loss, max(report.time_s for report in reports))


class WanUse:
    """What the WAN links carry.

    Attributes
    ----------
    wire_bytes : of all WAN links together, so far
    mbit : goodput of each link ("src>dst") in the last interval that is over, 10^6 bit/s; an idle link is left out
    """

    def __init__(self) -> None:
        self.wire_bytes = 0
        self.mbit: dict[str, float] | None = None
        self._time_s: float | None = None
        self._going_on: dict[str, float] = {}

    def add(self, event: LinkBytes) -> None:
        """Count an interval of any link; those inside regions only tell that time has passed."""
        if event.time_s != self._time_s:
            if self._time_s is not None:
                self.mbit = self._going_on
            self._going_on, self._time_s = {}, event.time_s
        if "/" not in event.link:
            self.wire_bytes += event.wire_bytes
            self._going_on[event.link] = event.wire_bytes * 8e-6 * PAYLOAD_PER_WIRE / event.interval_s
