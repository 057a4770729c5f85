"""The result table, on the terminal and in `summary.md`, the sentences above it and the papers' numbers below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testbed.record.reader import Run
from testbed.report import beside, columns
from testbed.report.columns import Column, speedup_metric, table, with_rest
from testbed.report.compare import Comparison
from testbed.report.looks import look
from testbed.report.summary import BASELINE, Target, aggregate
from testbed.report.wording import (
    caveats,
    conditions,
    duration,
    fidelity,
    is_missing,
    percent,
    times,
    title,
)

REPLAY = "replay.png"  # in the folder of a run that followed a trace
PLAIN_WIDTH = 160  # columns of a table that goes to a file or a pipe


def rows(frame: pd.DataFrame, by: Sequence[str] = ("system",)) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a result table: one row per system (or other key), over its seeds if there are several.

    Where nothing crosses a WAN, all in one region, the bytes inside it are shown instead.
    """
    shown = {"lan_bytes"} if frame["wan_bytes"].eq(0).fillna(False).all() else {"wan_bytes", "compression"}
    traffic = [column for column in columns.traffic(frame) if column.metric in shown]
    speedup = Column("speedup", speedup_metric(BASELINE), times)
    return table(frame, by, [*columns.result(frame), *columns.timing(frame, over=()), *traffic, speedup])


def headlines(run: Run, frame: pd.DataFrame) -> list[str]:
    """One sentence per system against the baseline: time to target, accuracy, bytes; measured, whatever it is."""
    together = {record["system"]: record for record in aggregate(frame).to_dict("records")}
    base = together.pop(BASELINE, None)
    if base is None:
        return []
    target = Target.of(run.info)
    return [f"{look(name).label}: {_verdict(record, base, target)}." for name, record in together.items()]


def _verdict(record: dict[str, Any], base: dict[str, Any], target: Target) -> str:
    parts = [_speed(record, base, target)] if target.stated else []
    gap = record["final_accuracy"] - base["final_accuracy"]
    if not is_missing(gap):
        accuracies = f"{percent(record['final_accuracy'])} against {percent(base['final_accuracy'])}"
        parts.append(f"accuracy {accuracies} ({100 * gap:+.1f} points)".replace("-", "−"))
    if not is_missing(record["compression"]):
        parts.append(f"{_ratio(record['compression'], 'fewer', 'more')} WAN bytes per step")
    return "; ".join(parts) or "nothing to compare was measured"


def _speed(record: dict[str, Any], base: dict[str, Any], target: Target) -> str:
    speedup, mine, theirs = record["speedup_vs_baseline"], record["time_to_target_s"], base["time_to_target_s"]
    if is_missing(mine):
        than = "nor did baseline" if is_missing(theirs) else f"baseline did in {duration(theirs)}"
        by = "" if not record["reached"] else f" with {record['seeds'] - record['reached']} of {record['seeds']} seeds"
        return f"did not reach {target}{by} in {record['steps']:,.0f} steps ({than})"
    if is_missing(speedup):
        return f"reaches {target} in {duration(mine)}; baseline did not reach it, so there is no speedup"
    low, high = record["speedup_vs_baseline_low"], record["speedup_vs_baseline_high"]
    interval = "" if is_missing(low) else f" (95 % interval {times(low)} to {times(high)})"
    against = f"{duration(mine)} against {duration(theirs)}"
    return f"reaches {target} {_ratio(speedup, 'sooner', 'later')} than baseline{interval}, {against}"


def _ratio(value: float, above: str, below: str) -> str:
    return f"{times(value)} {above}" if value >= 1 else f"{times(1 / value)} {below}"


def show(run: Run, frame: pd.DataFrame, console: Console | None = None) -> None:
    """Print table, conditions, headlines and caveats; without colour and at a fixed width where it is no terminal."""
    console = plain_unless_terminal(console)
    console.print(rich_table(title(run), *rows(frame)))
    console.print(escape(conditions(run)), style="dim")
    for sentence in headlines(run, frame):
        console.print(escape(sentence), style="bold")
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


def compared_markdown(found: Comparison) -> str:
    """The same for a document."""
    parts = [f"> **{sentence}**" for sentence in found.caveats]
    parts += [f"## {head}\n\n{markdown_table(*part)}" for head, part in compared_tables(found).items()]
    parts += found.notes
    return "\n\n".join(parts) + "\n"


def compared_tables(found: Comparison) -> dict[str, tuple[list[str], list[list[str]]]]:
    """The tables of a comparison, heads and cells, by title."""
    frame = with_rest(found.frame)
    parts = {
        "Loss and accuracy": columns.result(frame),
        "Time": columns.timing(frame, (BASELINE, *found.over)),
        "Traffic": columns.traffic(frame),
        "Where a step's time went": columns.spent(frame),
    }
    return {head: table(frame, found.by, part) for head, part in parts.items()}


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


def markdown(run: Run, frame: pd.DataFrame) -> str:
    """The content of `summary.md`."""
    heads, cells = rows(frame)
    parts = [f"# {title(run)}", conditions(run)]
    parts += [f"> **{sentence}**" for sentence in caveats(run, frame)]
    parts.append("\n".join(f"- {sentence}" for sentence in headlines(run, frame)))
    parts.append(markdown_table(heads, cells))
    if len(aggregate(frame)) < len(frame):
        parts.append("Mean over the seeds ± half its 95 % interval (Student's t); each seed is in summary.csv.")
    parts += markdown_beside(beside.HEADS, beside.paper_rows(run, frame), beside.setting(run))
    parts.append("![comparison](comparison.png)")
    if (run.folder / REPLAY).is_file():
        parts.append(f"![the trace and what came of it]({REPLAY})")
    if run.missing:
        parts.append("## What the record lacks\n\n" + "\n".join(f"- {note}" for note in run.missing))
    parts.append(provenance(run))
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_beside(heads: list[str], compared: Iterable[list[str]], setting: str) -> list[str]:
    """The part of a `summary.md` that sets the papers' numbers beside those here; nothing where there are none."""
    tables = beside.by_source(compared)
    parts = [part for source, cells in tables.items() for part in (f"### {source}", markdown_table(heads, cells))]
    return [f"## Beside the papers\n\n{setting}", *parts] if parts else []


def provenance(run: Run) -> str:
    """The part of a `summary.md` that says how the run was made."""
    info, machine = run.info, run.info.environment
    facts = {
        "run": run.name,
        "started": info.started_at,
        "command": f"`{' '.join(info.command)}`" if info.command else "",
        "commit": machine.commit + (" with changes" if machine.dirty else ""),
        "machine": ", ".join(
            part
            for part in (machine.cpu, f"{machine.cores} cores" if machine.cores else "", machine.kernel, info.device)
            if part
        ),
        "fidelity of the network": fidelity(info),
        "experiment": f"SHA-256 {info.experiment_hash[:16]}" if info.experiment_hash else "",
    }
    return "## How it was made\n\n" + "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


def markdown_table(heads: list[str], cells: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in heads[1:])]
    lines = [heads, rule, *([cell.replace("|", "\\|") for cell in line] for line in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
