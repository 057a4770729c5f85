"""How far a run is, a plain line at every tenth of its steps: where rich, and so `testbed.report.live`, is missing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from testbed.record.events import Event, StepDone
from testbed.record.steps import Steps
from testbed.roles.roles import Roles

if TYPE_CHECKING:
    from testbed.report.live import Progress


class PlainProgress:
    """Is told the run's events as they come, as `testbed.report.live.Progress` is."""

    def __init__(
        self, label: str, total_steps: int, roles: Roles, goodput_mbit: Mapping[str, float], can_draw: bool = True
    ) -> None:
        self._label, self._total = label, max(1, total_steps)
        self._steps, self._said = Steps(len(roles.workers)), -1

    def see(self, event: Event) -> None:
        """Take in an event; those that say nothing about progress are passed over."""
        if not isinstance(event, StepDone) or (step := self._steps.add(event)) is None:
            return
        if (share := 10 * step.done // self._total) > self._said:
            self._said = share
            line = f"{self._label}: step {step.done}/{self._total} loss {step.loss:.3f}"
            with suppress(OSError):  # nobody reads it
                print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """There is nothing to let go of."""


Watcher: TypeAlias = "Progress | PlainProgress"


def watcher() -> type[Progress] | type[PlainProgress]:
    """What shows how far a run is: plain lines on a machine without rich, which only trains."""
    try:
        from testbed.report.live import Progress
    except ImportError:
        return PlainProgress
    return Progress
