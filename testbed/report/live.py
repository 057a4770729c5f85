"""What the terminal shows while a run goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from testbed.report.wording import duration

QUIET_SHARE = 0.1  # without a terminal: a line at every tenth of the steps,
QUIET_S = 30.0  # and when this much real time has passed since the last


class Progress:
    """A bar on a terminal, a plain line now and then elsewhere. Showing progress never stops a run: it raises nothing.

    Parameters
    ----------
    total_steps : of this system and seed
    label : what runs, e.g. "weightgrad seed 0"
    console : where to; standard error by default, so that results can be piped
    now : real time in seconds, for tests
    """

    def __init__(
        self,
        total_steps: int,
        label: str,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._label, self._now = max(1, total_steps), label, now
        self._console = console or Console(stderr=True)
        self._bar: Bar | None = None
        self._said_at = now()
        self._said_share = -1
        with suppress(Exception):
            if self._console.is_terminal:
                self._bar = self._open_bar()

    def _open_bar(self) -> Bar:
        columns = (
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
        )
        bar = Bar(*columns, console=self._console, expand=True, refresh_per_second=4)
        self._task = bar.add_task(self._label, total=self._total, facts="")
        bar.start()
        return bar

    def update(
        self, step: int, loss: float | None = None, time_s: float | None = None, wan_mbit: float | None = None
    ) -> None:
        """Show that `step` steps are done: training loss, the run's clock in s, the WAN's rate in Mbit/s."""
        with suppress(Exception):
            facts = _facts(loss, time_s, wan_mbit)
            if self._bar is not None:
                self._bar.update(self._task, completed=step, facts=facts)
            elif self._is_due(step):
                self._console.out(f"{self._label}: step {step:,}/{self._total:,} {facts}".rstrip(), highlight=False)

    def _is_due(self, step: int) -> bool:
        share = math.floor(step / self._total / QUIET_SHARE + 1e-9)
        now = self._now()
        if share == self._said_share and now - self._said_at < QUIET_S:
            return False
        self._said_share, self._said_at = share, now
        return True

    def close(self) -> None:
        """Leave the bar as it stands; a second call does nothing."""
        with suppress(Exception):
            if self._bar is not None:
                self._bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _facts(loss: float | None, time_s: float | None, wan_mbit: float | None) -> str:
    parts = [
        "" if loss is None else f"loss {loss:.3f}",
        "" if time_s is None else f"at {duration(time_s)}",
        "" if wan_mbit is None else f"WAN {wan_mbit:.1f} Mbit/s",
    ]
    return "  ".join(part for part in parts if part)
