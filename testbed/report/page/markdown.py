"""The report as Markdown: `summary.md` of a run, a comparison of several."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from testbed.record.reader import Run
from testbed.report.numbers import disturbed, why
from testbed.report.numbers.compare import Comparison
from testbed.report.numbers.sentences import caveats, command, conditions, fidelity, headlines, title
from testbed.report.numbers.summary import aggregate, counted
from testbed.report.numbers.tables import SEEDS_NOTE, compared_tables, markdown_table, markdown_text, rows
from testbed.report.papers import beside

REPLAY = "replay.png"  # in the folder of a run that followed a trace


def markdown(run: Run, frame: pd.DataFrame) -> str:
    """The content of `summary.md`."""
    heads, cells = rows(frame)
    parts = [f"# {markdown_text(title(run))}", markdown_text(conditions(run))]
    parts += [f"> **{markdown_text(sentence)}**" for sentence in caveats(run, frame)]
    parts.append("\n".join(f"- {markdown_text(sentence)}" for sentence in headlines(run, frame)))
    parts.append(markdown_table(heads, cells))
    if len(aggregate(frame)) < len(counted(frame)):
        parts.append(f"{SEEDS_NOTE} Each seed is in summary.csv.")
    if cells := disturbed.rows(run):
        parts += ["## Under faults", markdown_table(disturbed.HEADS, cells), disturbed.NOTE]
    if told := why.of_systems(run):
        parts += [f"## {why.HEAD}", "\n".join(f"- {markdown_text(it.sentence)}" for it in told)]
        parts += [markdown_table(*why.rows(told)), why.NOTE]
    parts += markdown_beside(beside.HEADS, beside.paper_rows(run, frame), beside.setting(run))
    parts.append("![comparison](comparison.png)")
    if (run.folder / REPLAY).is_file():
        parts.append(f"![the trace and what came of it]({REPLAY})")
    if run.missing:
        parts.append("## What the record lacks\n\n" + "\n".join(f"- {markdown_text(note)}" for note in run.missing))
    parts.append(provenance(run))
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_beside(heads: list[str], compared: Iterable[list[str]], setting: str) -> list[str]:
    """The part of a `summary.md` that sets the papers' numbers beside those here; nothing where there are none."""
    tables = beside.by_source(compared)
    parts = [
        part
        for source, cells in tables.items()
        for part in (f"### {markdown_text(source)}", markdown_table(heads, cells))
    ]
    return [f"## Beside the papers\n\n{markdown_text(setting)}", *parts] if parts else []


def provenance(run: Run) -> str:
    """The part of a `summary.md` that says how the run was made."""
    info, machine = run.info, run.info.environment
    facts = {
        "run": run.name,
        "started": info.started_at,
        "command": command(info) or ("from Python, with the settings in run.json" if info.experiment else ""),
        "commit": machine.commit + (" with changes" if machine.dirty else ""),
        "machine": ", ".join(
            part
            for part in (machine.cpu, f"{machine.cores} cores" if machine.cores else "", machine.kernel, info.device)
            if part
        ),
        "fidelity of the network": fidelity(info),
        "experiment": f"SHA-256 {info.experiment_hash[:16]}" if info.experiment_hash else "",
    }
    write = {"command": _code if info.command else markdown_text}
    lines = [f"- {name}: {write.get(name, markdown_text)(value)}" for name, value in facts.items() if value]
    return "## How it was made\n\n" + "\n".join(lines)


def _code(text: str) -> str:
    """Text as a command, on one line."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def compared_markdown(found: Comparison) -> str:
    """The same for a document."""
    parts = [f"> **{markdown_text(sentence)}**" for sentence in found.caveats]
    parts += [f"## {markdown_text(head)}\n\n{markdown_table(*part)}" for head, part in compared_tables(found).items()]
    parts += map(markdown_text, found.notes)
    return "\n\n".join(parts) + "\n"
