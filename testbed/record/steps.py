"""What is going on, put together from the events of a run as they come: whole steps, and each link's rate."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.events import LinkBytes, StepDone, is_wan


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

    def add(self, event: LinkBytes) -> None:
        """Count an interval."""
        wan = {link: wire_bytes for link, wire_bytes in event.wire_bytes.items() if is_wan(link)}
        self.wire_bytes += event.wan_bytes
        if event.interval_s > 0:
            mbit = 8e-6 * PAYLOAD_PER_WIRE / event.interval_s
            self.mbit = {link: wire_bytes * mbit for link, wire_bytes in wan.items()}
