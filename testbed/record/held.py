"""Losses that are still on a device, read many at a time.

A worker's loss is a number on the device that nobody needs at once. Reading it would make the program wait for all that
the device still has to do, at every step of every worker. So an event with such a loss is held back, and with it what
comes after it, so that the records keep their order; and all that is held goes on at the next event that somebody
waits for, or when there are `MOST` of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import msgspec
from torch import Tensor

from testbed.errors import NotFinite
from testbed.gpu import doubts
from testbed.gpu.moves import numbers
from testbed.record.events import Checkpointed, Evaluated, Event, RunEnded, StepDone

MOST = 1024  # events held: as many a killed run may lose
AWAITED = (Evaluated, Checkpointed, RunEnded)


class Held:
    """Passes events on to `record` in their order, with losses as numbers.

    Parameters
    ----------
    to_be_finite : whether a loss that is not ends the run, once it is recorded
    """

    def __init__(self, record: Callable[[Event], None], to_be_finite: bool = False) -> None:
        self._record, self._to_be_finite = record, to_be_finite
        self._held: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Take an event. Raises as `release` does."""
        if not self._held and not (isinstance(event, StepDone) and _on_device(event)):
            self._record(event)
            if self._to_be_finite and isinstance(event, StepDone):
                require_finite(event)
            return
        self._held.append(event)
        if isinstance(event, AWAITED) or len(self._held) >= MOST:
            self.release()

    def release(self) -> None:
        """Read the losses of all events that are held, and pass these on.

        Raises
        ------
        CodecError
            A vector that was sent meanwhile was not finite, or a loss.
        """
        passed = self._pass_on()
        doubts.settle()
        if self._to_be_finite and not any(isinstance(event, RunEnded) for event in passed):
            for event in passed:
                if isinstance(event, StepDone):
                    require_finite(event)

    def _pass_on(self) -> list[Event]:
        """Record all that is held; what that was."""
        held, self._held = self._held, []
        late = [event for event in held if isinstance(event, StepDone) and _on_device(event)]
        losses = iter(numbers(*(event.loss for event in late)))  # type: ignore[arg-type]
        passed: list[Event] = []
        for event in held:
            if isinstance(event, StepDone) and _on_device(event):
                event = msgspec.structs.replace(event, loss=next(losses))
            self._record(event)
            passed.append(event)
        return passed


def require_finite(done: StepDone) -> None:
    """Raise NotFinite where a worker's loss says that its training has diverged.

    A codec need not have refused what made it so: what it decodes can be worse than what was sent.
    """
    if not isfinite(done.loss):
        raise NotFinite.of(f"training loss of step {done.step}")


def _on_device(done: StepDone) -> bool:
    return isinstance(done.loss, Tensor)
