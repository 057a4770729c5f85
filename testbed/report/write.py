"""The report of a run, beside its records.

`summary.csv`, `summary.md`, `comparison.png`, with a trace `replay.png`, and `report.html`, the page.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from testbed.files import write_whole
from testbed.record.reader import Run
from testbed.report.numbers.summary import read
from testbed.report.numbers.tables import csv
from testbed.report.page.html import FILE_NAME, page, pictures
from testbed.report.page.markdown import REPLAY, markdown
from testbed.report.pictures.registry import PICTURES, drawn
from testbed.report.pictures.style import png

PICTURES_BESIDE = {"comparison": "comparison.png", "replay": REPLAY}  # kind: file, where the records have its data


def write_report(folder: Path) -> tuple[Run, pd.DataFrame]:
    """Make the report of the run in `folder` from its records alone.

    Returns
    -------
    The run and its summary as `numbers.summary.read` gives them, for `terminal.show`.
    """
    run, frame = read(folder)
    write_whole(run.folder / "summary.csv", csv(frame))
    ready = {}
    for kind, name in PICTURES_BESIDE.items():
        if (figure := drawn(PICTURES.find(kind), [run], frame)) is not None:
            ready[kind] = png(figure)
            write_whole(run.folder / name, ready[kind])
    write_whole(run.folder / "summary.md", markdown(run, frame))
    write_whole(run.folder / FILE_NAME, page(run, frame, pictures(run, frame, ready)))
    return run, frame
