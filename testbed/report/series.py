"""The report of a series of runs: one table over all of them, and what each system makes of the swept key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from testbed.files import write_whole
from testbed.record.info import FILE_NAME as RUN_FILE
from testbed.record.reader import Run, load
from testbed.report.numbers import faultless
from testbed.report.numbers.labels import POINT, key, short
from testbed.report.numbers.sentences import caveats, conditions, title
from testbed.report.numbers.summary import summarize
from testbed.report.numbers.tables import csv, markdown_table, markdown_text, rows
from testbed.report.page.markdown import markdown_beside, provenance
from testbed.report.papers import beside
from testbed.report.pictures import draw
from testbed.report.pictures.style import save
from testbed.report.terminal import plain_unless_terminal, rich_table, show_beside

FIRST = "Here, in the first of these runs"


def write_series(folder: Path, labels: Sequence[str]) -> list[Path]:
    """Write `summary.csv`, `summary.md` and `series.png` of the series in `folder`, from the records of its runs.

    Parameters
    ----------
    labels : the runs' folders in the series, in order; those not begun yet are left out

    Returns
    -------
    The files written; none when no run has begun.
    """
    runs, frames = _read(folder, labels)
    if not frames:
        return []
    together = _together(frames)
    paths = [folder / name for name in ("summary.csv", "summary.md", "series.png")]
    write_whole(paths[0], csv(together[[POINT, *(name for name in together.columns if name != POINT)]]))
    write_whole(paths[1], _markdown(runs, frames, together, len(labels)))
    save(draw([runs[label] for label in frames], "series", together.rename(columns={POINT: "run"})), paths[2])
    return paths


def show_series(folder: Path, labels: Sequence[str], console: Console | None = None) -> None:
    """Print the table of the series in `folder` and the papers' numbers beside its own."""
    runs, frames = _read(folder, labels)
    if not frames:
        return
    console = plain_unless_terminal(console)
    first = runs[next(iter(frames))]
    console.print(
        rich_table(f"{title(first)}, a series of {len(labels)} runs", *rows(_together(frames), (POINT, "system")))
    )
    if faulted := _faulted(runs, frames):
        console.print(rich_table("Against the run without faults", faultless.HEADS, faulted))
    show_beside(console, [key(labels[0]), *beside.HEADS], _compared(runs, frames), beside.setting(first, FIRST))


def _read(folder: Path, labels: Sequence[str]) -> tuple[dict[str, Run], dict[str, pd.DataFrame]]:
    """The runs that have begun, by their labels, and the summaries of those that have a result."""
    runs = {label: load(folder / label) for label in labels if (folder / label / RUN_FILE).is_file()}
    frames = {label: summarize(run) for label, run in runs.items()}
    return runs, {label: frame for label, frame in frames.items() if len(frame)}


def _together(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.assign(**{POINT: label}) for label, frame in frames.items()], ignore_index=True)


def _table(together: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table over all runs; the first column holds the values of the swept keys."""
    heads, cells = rows(together, by=(POINT, "system"))
    return [key(str(together[POINT].iloc[0])), *heads[1:]], [[short(line[0]), *line[1:]] for line in cells]


def _compared(runs: dict[str, Run], frames: dict[str, pd.DataFrame]) -> list[list[str]]:
    """The papers' numbers beside those of every run."""
    return [[short(label), *row] for label, frame in frames.items() for row in beside.paper_rows(runs[label], frame)]


def _faulted(runs: dict[str, Run], frames: dict[str, pd.DataFrame]) -> list[list[str]]:
    """What faults did to each system, where one of the runs has none."""
    found = faultless.against_faultless(runs, frames)
    return faultless.rows(found, {label: short(label) for label in frames}) if len(found) else []


def _markdown(runs: dict[str, Run], frames: dict[str, pd.DataFrame], together: pd.DataFrame, wanted: int) -> str:
    label, first = next((label, run) for label, run in runs.items() if label in frames)
    parts = [f"# {markdown_text(title(first))}, a series of {wanted} runs"]
    parts += [f"The first of them: {markdown_text(conditions(first))}"]
    parts += [f"> **{markdown_text(sentence)}**" for sentence in caveats(first, frames[label])]
    if len(frames) < wanted:
        parts.append(f"> **{wanted - len(frames)} of {wanted} runs have no result yet**")
    parts.append(markdown_table(*_table(together)))
    parts += markdown_beside([key(label), *beside.HEADS], _compared(runs, frames), beside.setting(first, FIRST))
    if faulted := _faulted(runs, frames):
        parts += ["## Against the run without faults", markdown_table(faultless.HEADS, faulted), faultless.NOTE]
    parts.append("![series](series.png)")
    parts.append(provenance(first))
    parts.append("This is of the first of the runs; each has its own report in the folder of its name.")
    return "\n\n".join(parts) + "\n"
