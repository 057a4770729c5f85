"""The report of a series of runs: one table over all of them, and what each system makes of the swept keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape

from testbed.files import write_whole
from testbed.record import series
from testbed.record.info import FILE_NAME as RUN_FILE
from testbed.record.reader import Run, load
from testbed.record.series import Grid
from testbed.report.numbers import faultless
from testbed.report.numbers.progress import of_series
from testbed.report.numbers.sentences import caveats, conditions, title
from testbed.report.numbers.summary import counted, summarize
from testbed.report.numbers.tables import csv, markdown_table, markdown_text, rows
from testbed.report.page.markdown import markdown_beside, provenance
from testbed.report.papers import beside
from testbed.report.pictures import draw
from testbed.report.pictures.style import save
from testbed.report.terminal import plain_unless_terminal, rich_table, show_beside

POINT = "point"  # the column of summary.csv that holds a run's label
FIRST = "Here, in the first of these runs"


@dataclass(frozen=True)
class _Series:
    """The runs of a series that have begun, by label, and the summaries of those that have a result."""

    folder: Path
    wanted: int
    runs: dict[str, Run]
    frames: dict[str, pd.DataFrame]

    @cached_property
    def grid(self) -> Grid:
        return series.grid([self.folder / label for label in self.frames])

    @property
    def first(self) -> Run:
        return self.runs[next(iter(self.frames))]

    @property
    def title(self) -> str:
        """As that of a run, without the profile where it is one of what is swept."""
        what = self.first.info.target if "topology.profile" in self.grid.keys else title(self.first)
        return f"{what}, a series of {self.wanted} runs"

    @cached_property
    def together(self) -> pd.DataFrame:
        """The summaries of all runs."""
        return pd.concat([frame.assign(**{POINT: label}) for label, frame in self.frames.items()], ignore_index=True)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and cells of the table over all runs; the first columns hold the places on the axes."""
        heads, cells = rows(self.together, by=(POINT, "system"))
        names = [axis.name for axis in self.grid.axes]
        return [*names, *heads[1:]], [[*self.grid.values(line[0]), *line[1:]] for line in cells]

    def compared(self) -> list[list[str]]:
        """The papers' numbers beside those of every run."""
        found = ((label, beside.paper_rows(self.runs[label], frame)) for label, frame in self.frames.items())
        return [[self.grid.called(label), *row] for label, each in found for row in each]

    def faulted(self) -> list[list[str]]:
        """What faults did to each system, where one of the runs has none."""
        found = faultless.against_faultless(self.runs, self.frames)
        return faultless.rows(found, {label: self.grid.called(label) for label in self.frames}) if len(found) else []


def write_series(folder: Path) -> list[Path]:
    """Write `summary.csv`, `summary.md` and `series.png` of the series in `folder`, from the records of its runs.

    Returns
    -------
    The files written; none when no run has begun.
    """
    found = _read(folder)
    if not found.frames:
        return []
    together = found.together
    paths = [folder / name for name in ("summary.csv", "summary.md", "series.png")]
    write_whole(paths[0], csv(together[[POINT, *(name for name in together.columns if name != POINT)]]))
    write_whole(paths[1], _markdown(found))
    runs = [found.runs[label] for label in found.frames]
    save(draw(runs, "series", together.rename(columns={POINT: "run"})), paths[2])
    return paths


def show_series(folder: Path, console: Console | None = None) -> None:
    """Print the table of the series in `folder` and the papers' numbers beside its own."""
    found = _read(folder)
    if not found.frames:
        return
    console = plain_unless_terminal(console)
    console.print(rich_table(found.title, *found.table()))
    if faulted := found.faulted():
        console.print(rich_table("Against the run without faults", faultless.HEADS, faulted))
    show_beside(console, [found.grid.name, *beside.HEADS], found.compared(), beside.setting(found.first, FIRST))
    if sentence := of_series(folder):
        console.print(escape(sentence), style="yellow")


def _read(folder: Path) -> _Series:
    labels = list(series.read(folder).points)
    runs = {label: load(folder / label) for label in labels if (folder / label / RUN_FILE).is_file()}
    frames = {label: counted(summarize(run)) for label, run in runs.items()}
    return _Series(folder, len(labels), runs, {label: frame for label, frame in frames.items() if len(frame)})


def _markdown(found: _Series) -> str:
    first, label = found.first, next(iter(found.frames))
    parts = [f"# {markdown_text(found.title)}", f"The first of them: {markdown_text(conditions(first))}"]
    parts += [f"> **{markdown_text(sentence)}**" for sentence in caveats(first, found.frames[label])]
    if sentence := of_series(found.folder):
        parts.append(f"> **{markdown_text(sentence)}**")
    parts.append(markdown_table(*found.table()))
    parts += markdown_beside([found.grid.name, *beside.HEADS], found.compared(), beside.setting(first, FIRST))
    if faulted := found.faulted():
        parts += ["## Against the run without faults", markdown_table(faultless.HEADS, faulted), faultless.NOTE]
    parts.append("![series](series.png)")
    parts.append(provenance(first))
    parts.append("This is of the first of the runs; each has its own report in the folder of its name.")
    return "\n\n".join(parts) + "\n"
