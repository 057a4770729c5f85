"""What the terminal shows of a run that is over: tables, conditions, headlines, the papers' numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testbed.record.reader import Run
from testbed.report.numbers import disturbed
from testbed.report.numbers.compare import Comparison
from testbed.report.numbers.sentences import caveats, conditions, headlines, title
from testbed.report.numbers.tables import compared_tables, rows
from testbed.report.papers import beside

PLAIN_WIDTH = 160  # columns of a table that goes to a file or a pipe


def show(run: Run, frame: pd.DataFrame, console: Console | None = None) -> None:
    """Print table, conditions, headlines and caveats; without colour and at a fixed width where it is no terminal."""
    console = plain_unless_terminal(console)
    console.print(rich_table(title(run), *rows(frame)))
    console.print(escape(conditions(run)), style="dim")
    for sentence in headlines(run, frame):
        console.print(escape(sentence), style="bold")
    if cells := disturbed.rows(run):
        heads, *lines = ([line[column] for column in disturbed.TERSE] for line in (disturbed.HEADS, *cells))
        console.print(rich_table("Under faults", heads, lines))
        console.print(escape(disturbed.NOTE), style="dim")
    for sentence in [*caveats(run, frame), *run.missing]:
        console.print(escape(sentence), style="yellow")
    show_beside(console, beside.HEADS, beside.paper_rows(run, frame), beside.setting(run))


def show_beside(console: Console, heads: list[str], compared: Iterable[list[str]], setting: str) -> None:
    """Print the papers' numbers beside those here, a table for each place in a paper; nothing where there are none."""
    tables = beside.by_source(compared)
    for source, cells in tables.items():
        console.print(escape(f"Beside {source}"), style="italic")  # a table's own title is no wider than the table
        console.print(rich_table("", heads, cells))
    if tables:
        console.print(escape(setting), style="dim")


def show_compared(found: Comparison, console: Console | None = None) -> None:
    """Print a comparison: a row per system, and per run or differing condition where those cannot be put together."""
    console = plain_unless_terminal(console)
    for head, part in compared_tables(found).items():
        console.print(rich_table(head, *part))
    for sentence in found.caveats:
        console.print(escape(sentence), style="bold yellow" if sentence.isupper() else "yellow")
    for note in found.notes:
        console.print(escape(note), style="dim")


def plain_unless_terminal(console: Console | None = None) -> Console:
    """The console, or one without colour and of a fixed width where it is no terminal."""
    console = console or Console()
    if console.is_terminal:
        return Console(file=console.file, force_terminal=True, width=console.width, highlight=False)
    return Console(file=console.file, width=PLAIN_WIDTH, no_color=True, highlight=False)


def rich_table(head: str, heads: list[str], cells: list[list[str]]) -> Table:
    """A table for the terminal; cells are text as it stands."""
    table = Table(title=escape(head) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(heads):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for line in cells:
        table.add_row(*map(escape, line))
    return table
