"""The report of a run, beside its records: `summary.csv`, `summary.md`, `comparison.png`, with a trace `replay.png`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from testbed.files import write_whole
from testbed.record.reader import Run
from testbed.report.numbers.summary import read
from testbed.report.numbers.tables import csv
from testbed.report.page.markdown import REPLAY, markdown
from testbed.report.pictures.registry import PICTURES, drawn
from testbed.report.pictures.style import save

PICTURES_BESIDE = {"comparison": "comparison.png", "replay": REPLAY}  # kind: file, where the records have its data


def write_report(folder: Path) -> tuple[Run, pd.DataFrame]:
    """Make the report of the run in `folder` from its records alone.

    Returns
    -------
    The run and its summary as `numbers.summary.read` gives them, for `terminal.show`.
    """
    run, frame = read(folder)
    write_whole(run.folder / "summary.csv", csv(frame))
    for kind, name in PICTURES_BESIDE.items():
        if (figure := drawn(PICTURES.find(kind), [run], frame)) is not None:
            save(figure, run.folder / name)
    write_whole(run.folder / "summary.md", markdown(run, frame))
    return run, frame
