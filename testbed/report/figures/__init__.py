"""Figures for a paper, one column wide, each drawn from the records alone: `KINDS` names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from testbed.errors import InputError, nearest
from testbed.record.reader import Run
from testbed.report.figures import canvas, network, protocol, training
from testbed.report.summary import measure


@dataclass(frozen=True)
class Kind:
    """A figure of one run: what it shows, in a sentence, and what draws it (None where a run lacks the data)."""

    caption: str
    draw: Callable[[Run, pd.DataFrame], Figure | None]


KINDS = {
    "loss": Kind("Training loss against steps and against time, running mean over the target's window.", training.loss),
    "speedup": Kind("How many times sooner than the baseline each system reached the target.", training.speedup),
    "accuracy": Kind("Test accuracy of the resulting model while it trained.", training.accuracy),
    "pareto": Kind(
        "Accuracy against bytes on the WAN; the line joins systems that none beats in both.", training.pareto
    ),
    "time": Kind("Where the time of a step went, as far as it was recorded.", network.time),
    "wan": Kind("How much of each WAN link's rate was in use over time; white after the end.", network.wan),
    "bandwidth": Kind("Goodput inside and between regions, as the profile states it.", network.bandwidth),
    "threshold": Kind("Significance of each region's update, its threshold, and the exchanges.", protocol.threshold),
    "bits": Kind("Bits per gradient value that the policy chose.", protocol.bits),
}
WORKERS = "workers"  # of several runs
FOLDER = "plots"


def draw(
    run: Run,
    frame: pd.DataFrame,
    folder: Path,
    kinds: Sequence[str] = (),
    formats: Sequence[str] = canvas.FORMATS,
) -> list[Path]:
    """Draw figures of `run` as `folder/<kind>.<format>`.

    Parameters
    ----------
    frame : `summarize(run)`
    kinds : names of `KINDS`; all when empty

    Returns
    -------
    The files written: none of a kind whose data the run does not have.

    Raises
    ------
    InputError
        A kind or a format is not known.
    """
    check(kinds, list(KINDS), "kind")
    check(formats, canvas.FORMATS, "format")
    paths = []
    for kind in kinds or KINDS:
        with canvas.drawing():
            figure = KINDS[kind].draw(run, frame)
            if figure is not None:
                paths += canvas.save(figure, folder / kind, formats)
    return paths


def draw_workers(runs: Sequence[Run], folder: Path, formats: Sequence[str] = canvas.FORMATS) -> list[Path]:
    """Draw `folder/workers.<format>`: one system's loss in runs with more and fewer workers.

    Raises
    ------
    InputError
        The runs have no system in common, or a format is not known.
    """
    check(formats, canvas.FORMATS, "format")
    frame = pd.concat([measure(run) for run in runs], ignore_index=True)
    with canvas.drawing():
        figure = training.workers(runs, frame)
        if figure is None:
            raise InputError("the runs have no system in common whose losses could be drawn side by side")
        return canvas.save(figure, folder / WORKERS, formats)


def check(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise InputError for a name that is not known."""
    for name in names:
        if name not in known:
            raise InputError(f"--{what} {name}: unknown{nearest(name, list(known))}; known: {', '.join(known)}")
