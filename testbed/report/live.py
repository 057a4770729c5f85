"""What the terminal shows while a run goes on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from testbed.record.events import Capacity, Event, LinkBytes, StepDone
from testbed.record.steps import Step, Steps, WanUse
from testbed.report.aside import Aside
from testbed.report.numbers.wording import duration, number, size
from testbed.roles.roles import Roles, kind_of
from testbed.wan.plan import region_of

QUIET_SHARE = 0.1  # without a terminal: a line at every tenth of the steps,
QUIET_S = 30.0  # and when this much real time has passed since the last
REFRESHES_PER_S = 2  # few: where compute is measured, drawing takes its time from the workers
CURVE_CELLS = 40
LINK_CELLS = 20
OTHER_ROWS = 6  # of the terminal: bar, facts, headings, the prompt
BLOCKS = "▁▂▃▄▅▆▇█"

Tell = Callable[[str, int, int], None]
"""Takes what runs ("weightgrad, seed 0"), how many steps are done, and of how many."""
_told: ContextVar[Tell | None] = ContextVar("told", default=None)


@contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Within it `tell` is told of every step; nothing is shown here, where nobody looks."""
    token = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(token)


class Progress:
    """A live view on a terminal, a plain line now and then elsewhere. Showing progress never stops a run.

    It is told the run's events as they come (`see`) and raises nothing.

    Parameters
    ----------
    label : what runs, e.g. "weightgrad, seed 0"
    total_steps : of this system and seed
    roles : who takes part
    goodput_mbit : of each WAN link, "src>dst"; changed by `Capacity` events
    console : where to; standard error by default, so that results can be piped
    now : real time in seconds, for tests
    can_draw : whether a view may be drawn where there is a terminal; not when several runs share it
    """

    def __init__(
        self,
        label: str,
        total_steps: int,
        roles: Roles,
        goodput_mbit: Mapping[str, float],
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
        can_draw: bool = True,
    ) -> None:
        self._label, self._total, self._now = label, max(1, total_steps), now
        self._roles, self._goodput_mbit = roles, dict(goodput_mbit)
        self._console = console or Aside()
        self._steps, self._wan = Steps(len(roles.workers)), WanUse()
        self._facts = ""
        self._losses: dict[int, float] = {}  # the last of each cell of the curve
        self._said_at, self._said_share = now(), -1
        self._live: Live | None = None
        self._ended = False
        self._tell = _told.get()
        with suppress(Exception):
            if can_draw and self._console.is_terminal and self._tell is None:
                self._open()

    def _open(self) -> None:
        columns = (
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TimeRemainingColumn(compact=True),
        )
        self._bar = Bar(*columns, console=self._console, expand=True)
        self._task = self._bar.add_task(self._label, total=self._total)
        self._live = Live(console=self._console, get_renderable=self._view, refresh_per_second=REFRESHES_PER_S)
        self._live.start()

    def see(self, event: Event) -> None:
        """Take in an event; those that say nothing about progress are passed over."""
        with suppress(Exception):
            match event:
                case StepDone() if step := self._steps.add(event):
                    self._show(step)
                case LinkBytes():
                    self._wan.add(event)
                case Capacity():
                    self._goodput_mbit[event.link] = event.goodput_mbit

    def _show(self, step: Step) -> None:
        if self._tell is not None:
            self._tell(self._label, step.done, self._total)
            return
        wan = self._wan
        parts = [] if math.isnan(step.loss) else [f"loss {step.loss:.3f}"]
        parts += [f"at {duration(step.time_s)}"]
        if wan.mbit is not None and self._roles.wan_pairs:
            parts.append(f"WAN {sum(wan.mbit.values()):.1f} Mbit/s, {size(wan.wire_bytes)}")
        self._facts = "  ".join(parts)
        if self._live is not None:
            self._losses[min(CURVE_CELLS - 1, step.done * CURVE_CELLS // self._total)] = step.loss
            self._bar.update(self._task, completed=step.done)
        elif self._is_due(step.done):
            self._console.out(f"{self._label}: step {step.done:,}/{self._total:,} {self._facts}", highlight=False)

    def _is_due(self, done: int) -> bool:
        share = math.floor(done / self._total / QUIET_SHARE + 1e-9)
        now = self._now()
        if share == self._said_share and now - self._said_at < QUIET_S:
            return False
        self._said_share, self._said_at = share, now
        return True

    def _view(self) -> RenderableType:
        """The view as of now; called by rich's own thread, which an error would end with a traceback."""
        try:
            facts = Text.assemble(f"{self._facts}  ", (_curve(self._losses), "cyan"), no_wrap=True, overflow="ellipsis")
            return Group(self._bar.get_renderable(), facts, *([] if self._ended else [self._network()]))
        except Exception:
            return Text("")

    def _network(self) -> RenderableType:
        """A row a WAN link that is used, those of a region together; where there is no room, the busiest."""
        used = sorted(self._roles.wan_pairs)
        if not used:
            here = self._roles.server_region
            return Text(f"{here}  {_roles_in(self._roles, here)}: nothing crosses a WAN")
        mbit = self._wan.mbit or {}
        shares = {pair: mbit.get(">".join(pair), 0.0) / self._goodput_mbit[">".join(pair)] for pair in used}
        room = max(1, self._console.height - OTHER_ROWS)
        shown = sorted(sorted(used, key=lambda pair: -shares[pair])[:room])
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("region", "roles", "sends to", "use", "of Mbit/s"):
            table.add_column(heading, justify="right" if heading == "of Mbit/s" else "left", no_wrap=True)
        last = ""
        for src, dst in shown:
            cells = (src, _roles_in(self._roles, src)) if src != last else ("", "")
            goodput = self._goodput_mbit[f"{src}>{dst}"]
            rate = f"{mbit.get(f'{src}>{dst}', 0.0):.1f} of {number(goodput)}"
            table.add_row(*cells, dst, _bar(shares[src, dst]), rate)
            last = src
        if len(used) > len(shown):
            table.caption = f"{len(used) - len(shown)} links that carry less are not shown"
        return table

    def close(self) -> None:
        """Leave the bar as it stands, without the network; a second call does nothing."""
        with suppress(Exception):
            if self._live is not None:
                self._ended = True
                self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _roles_in(roles: Roles, region: str) -> str:
    """ "LPS, 4 workers"."""
    names = {"gs": "global server", "lps": "LPS", "worker": "worker"}
    counts = Counter(kind_of(role) for role in roles.all if region_of(role) == region)
    return ", ".join(
        name if counts[kind] == 1 else f"{counts[kind]} {name}s" for kind, name in names.items() if counts[kind]
    )


def _bar(share: float) -> Text:
    filled = min(LINK_CELLS, round(share * LINK_CELLS))
    return Text.assemble(("█" * filled, "green"), ("░" * (LINK_CELLS - filled), "grey50"))


def _curve(losses: Mapping[int, float]) -> str:
    """The loss over the run so far as a line of blocks."""
    known = [loss for _, loss in sorted(losses.items()) if math.isfinite(loss)]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    return "".join(BLOCKS[round((loss - low) / max(high - low, 1e-12) * (len(BLOCKS) - 1))] for loss in known)
