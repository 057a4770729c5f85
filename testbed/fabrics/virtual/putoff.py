"""What a device has to do before the clock goes on to where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from testbed.gpu.together import Asked, Gathering
from testbed.workloads.launches import Launches


class PutOff:
    """Gradients, and other computations that are done in one go where several are asked for at one instant.

    Attributes
    ----------
    due_s : on the run's clock, when the first of them is needed
    """

    def __init__(self, launches: Launches) -> None:
        self._launches, self._gathering, self._due_s = launches, Gathering(), inf

    @property
    def due_s(self) -> float:
        return min(self._due_s, self._launches.due_s)

    def ask(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Asked | None:
        """Put a computation off; None: it is to be done at once."""
        return self._gathering.ask(method, arguments) if self._launches.together else None

    def needed(self, at_s: float, asked: Asked | None) -> None:
        """What was asked for since the last call is needed at this moment of the run's clock."""
        self._launches.needed(at_s)
        if asked is not None:
            self._due_s = min(self._due_s, at_s)

    def run(self) -> None:
        """Do all that has been put off; gradients first, which others may be of."""
        self._launches.run()
        self._gathering.run()
        self._due_s = inf

    def forget(self) -> None:
        """Whoever asked is gone."""
        self._launches.forget()
        self._gathering.forget()
        self._due_s = inf
