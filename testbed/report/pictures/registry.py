"""The kinds of pictures by name, and how one is drawn from the records of a run or of several.

A kind is a function in a file of its own: the testbed's in `kinds/`, others in plug-ins (`testbed.plugins`).

    from testbed.report.pictures import picture, sheet

    @picture("steps")
    def steps(run, frame):
        \"\"\"How long each step took.\"\"\"
        figure = sheet(2.0, [run])
        axes = figure.subplots()
        for result in run.results:
            axes.plot(result.steps["time_s"].diff(), label=result.system)
        return figure
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from testbed.errors import InputError, nearest
from testbed.plugins import Registry
from testbed.record import series
from testbed.record.reader import Run
from testbed.report.numbers.summary import summarize
from testbed.report.pictures.style import COLUMN, FORMATS, WIDE, drawing, save_all, settle

Draw = Callable[[Any, pd.DataFrame], Figure | None]
D = TypeVar("D", bound=Draw)
FOLDER = "plots"  # in the folder of a run
LAST = 100  # a kind that does not say where it stands among the others stands behind them


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes
    ----------
    draw : makes the figure, or None where the records do not have the data: of a `Run` and its summary (`summarize`),
        or `of_several` runs, a list, and their summaries together, the column "run" saying of which (`summary_of`)
    wide : as wide as a page, and drawn only when it is asked for by name; else one column of a paper wide
    order : where it stands among the others, low ones first
    """

    name: str
    draw: Draw
    wide: bool
    of_several: bool
    order: int

    @property
    def caption(self) -> str:
        """What it shows: the first line of what the function says of itself."""
        return (self.draw.__doc__ or self.name).strip().splitlines()[0]


PICTURES: Registry[Kind] = Registry("kind of picture", "testbed.report.pictures.kinds")


def picture(name: str, *, wide: bool = False, of_several: bool = False, order: int = LAST) -> Callable[[D], D]:
    """Register the function below it as a kind of picture; parameters as in `Kind`."""

    def register(function: D) -> D:
        PICTURES.add(name, Kind(name, function, wide, of_several, order), function.__module__)
        return function

    return register


def gallery(of_several: bool = False) -> list[Kind]:
    """The kinds that are drawn where none is named, in their order."""
    kinds = [kind for kind in PICTURES.values() if kind.of_several == of_several and not kind.wide]
    return sorted(kinds, key=lambda kind: kind.order)


def draw(runs: Run | Sequence[Run], name: str, frame: pd.DataFrame | None = None) -> Figure:
    """Draw a picture.

    Parameters
    ----------
    runs : one run, or several for a kind that puts them side by side
    frame : their summary (`summary_of`), where the caller has it already

    Raises
    ------
    InputError
        No such kind, it is of another number of runs, or the records do not have its data.
    """
    several = [runs] if isinstance(runs, Run) else list(runs)
    kind = PICTURES.find(name)
    figure = drawn(kind, several, summary_of(several) if frame is None else frame)
    if figure is None:
        raise _nothing(several, [kind])
    return figure


def _nothing(runs: Sequence[Run], kinds: Sequence[Kind]) -> InputError:
    shown = "; ".join(f"'{kind.name}': {kind.caption.removesuffix('.')}" for kind in kinds)
    return InputError(f"{', '.join(run.name for run in runs)}: the records hold nothing for {shown}")


def drawn(kind: Kind, runs: Sequence[Run], frame: pd.DataFrame) -> Figure | None:
    """The same for a kind; None where the records do not have its data."""
    if not kind.of_several and len(runs) > 1:
        raise InputError(f"a picture of kind '{kind.name}' is of one run; these are {len(runs)}")
    with drawing(WIDE if kind.wide else COLUMN):
        figure = kind.draw(list(runs) if kind.of_several else runs[0], frame)
        return None if figure is None else settle(figure)


def write(
    runs: Sequence[Run],
    folder: Path,
    names: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
    frame: pd.DataFrame | None = None,
) -> list[Path]:
    """Draw pictures as `folder/<kind>.<format>`.

    Parameters
    ----------
    names : of kinds; where there are none, those of the `gallery`
    frame : as in `draw`

    Returns
    -------
    The files written: none of a kind whose data the records do not have.

    Raises
    ------
    InputError
        A kind or a format is not known, or there are data for none of `names`, for nothing of several runs.
    """
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"--format {name}: unknown{nearest(name, FORMATS)}")
    kinds = [PICTURES.find(name) for name in names] or gallery(of_several=len(runs) > 1)
    frame = summary_of(runs) if frame is None else frame
    paths = []
    for kind in kinds:
        figure = drawn(kind, runs, frame)
        if figure is not None:
            paths += save_all(figure, folder / kind.name, formats)
    if not paths and (names or len(runs) > 1):
        raise _nothing(runs, kinds)
    return paths


def summary_of(runs: Sequence[Run]) -> pd.DataFrame:
    """The summaries of runs together; the column "run" says of which each is (`record.series.labels`)."""
    labels = series.labels([run.folder for run in runs])
    return pd.concat(
        [summarize(run).assign(run=name) for name, run in zip(labels, runs, strict=True)], ignore_index=True
    )
