"""Losses that are still on a device, read many at a time.

A worker's loss is a number on the device that nobody needs at once. Reading it would make the program wait for all that
the device still has to do, at every step of every worker. So an event with such a loss is held back, and with it what
comes after it, so that the records keep their order; and all that is held goes on at the next event that somebody
waits for, or when there are `MOST` of them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from testbed.gpu import doubts
from testbed.gpu.moves import numbers
from testbed.record.events import Checkpointed, Evaluated, Event, RunEnded, StepDone

MOST = 1024  # events held: as many a killed run may lose
AWAITED = (Evaluated, Checkpointed, RunEnded)


class Held:
    """Passes events on to `record` in their order, with losses as numbers."""

    def __init__(self, record: Callable[[Event], None]) -> None:
        self._record = record
        self._held: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if not self._held and not (isinstance(event, StepDone) and _on_device(event)):
            self._record(event)
            return
        self._held.append(event)
        if isinstance(event, AWAITED) or len(self._held) >= MOST:
            self.release()

    def release(self) -> None:
        """Read the losses of all events that are held, and pass these on.

        Raises
        ------
        CodecError
            A vector that was sent meanwhile was not finite.
        """
        held, self._held = self._held, []
        late = [event for event in held if isinstance(event, StepDone) and _on_device(event)]
        losses = iter(numbers(*(event.loss for event in late)))  # type: ignore[arg-type]
        for event in held:
            if isinstance(event, StepDone) and _on_device(event):
                event = msgspec.structs.replace(event, loss=next(losses))
            self._record(event)
        doubts.settle()


def _on_device(done: StepDone) -> bool:
    return not isinstance(done.loss, float | int)
