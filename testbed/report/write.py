"""The report of a run, beside its records: `summary.csv`, `summary.md`, `comparison.png`, with a trace `replay.png`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from testbed.files import write_whole
from testbed.record.reader import Run, load
from testbed.report.plots import comparison
from testbed.report.replay_plot import replay
from testbed.report.summary import summarize
from testbed.report.tables import REPLAY, markdown


def write_report(folder: Path) -> tuple[Run, pd.DataFrame]:
    """Make the report of the run in `folder` from its records alone.

    Returns
    -------
    The run as read and its summary frame (`testbed.report.summary`), for `testbed.report.tables.show`.

    Raises
    ------
    InputError
        There is no run in `folder`.
    """
    run = load(folder)
    frame = summarize(run)
    write_whole(run.folder / "summary.csv", csv(frame))
    comparison(run, run.folder / "comparison.png", frame)
    replay(run, run.folder / REPLAY)
    write_whole(run.folder / "summary.md", markdown(run, frame))
    return run, frame


def csv(frame: pd.DataFrame) -> str:
    """The summary as CSV: empty where nothing was measured, numbers with at most ten significant digits."""
    return frame.to_csv(index=False, float_format="%.10g")
