"""What the terminal shows while many errands go on at once, elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from testbed.report.aside import Aside

QUIET_S = 30.0  # without a terminal: a line when something is done, and when this much time has passed
REFRESHES_PER_S = 2
OTHER_ROWS = 4  # of the terminal: the sum, the headings, the prompt
BAR_CELLS = 30


class Errands:
    """A table of those under way on a terminal, a plain line now and then elsewhere; raises nothing.

    Parameters
    ----------
    total : how many there are to do
    say : takes lines where there is no terminal
    console : where to; standard error by default, so that results can be piped
    """

    def __init__(self, total: int, say: Callable[[str], None], console: Console | None = None) -> None:
        self._total, self._done = total, 0
        self._said, self._said_s = say, time.monotonic()
        self._under_way: Mapping[str, tuple[str, int, int]] = {}
        self._console = console or Aside()
        self._live: Live | None = None
        with suppress(Exception):
            if self._console.is_terminal:
                view = Live(console=self._console, get_renderable=self._view, refresh_per_second=REFRESHES_PER_S)
                view.start()
                self._live = view

    def see(self, under_way: Mapping[str, tuple[str, int, int]]) -> None:
        """Take in what is under way: by its label the node, steps done, and of how many (0: not known)."""
        self._under_way = under_way
        if self._live is None and time.monotonic() - self._said_s >= QUIET_S:
            self.say(self._sum())

    def done(self, label: str, node: str) -> None:
        """One is done, and its files are here."""
        self._done += 1
        if self._live is None:
            self.say(f"{label}: done on {node} ({self._done} of {self._total})")

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._said_s = time.monotonic()
        if self._live is None:
            self._said(line)
        else:
            self._console.print(line, highlight=False, markup=False)

    def _sum(self) -> str:
        waiting = self._total - self._done - len(self._under_way)
        return (
            f"{self._done} of {self._total} done, {len(self._under_way)} under way, {waiting} waiting for a free core"
        )

    def _view(self) -> RenderableType:
        try:
            table = Table(box=None, pad_edge=False, header_style="dim")
            for heading in ("under way", "", "step", "node"):
                table.add_column(heading, no_wrap=True)
            room = max(1, self._console.height - OTHER_ROWS)
            for label, (node, done, total) in sorted(self._under_way.items())[:room]:
                bar = ProgressBar(total=max(1, total), completed=done, width=BAR_CELLS)
                table.add_row(Text(label), bar, f"{done:,}/{total:,}" if total else "starting", Text(node))
            return Group(table, Text(self._sum(), style="bold"))
        except Exception:
            return Text("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):
            if self._live is not None:
                self._live.stop()
