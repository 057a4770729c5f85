"""A testbed for training one model across data centers joined by an emulated wide-area network.

`testbed.load("results/<target>/<run>")` gives a run's records as pandas frames (`testbed.record.reader.Run`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.record.reader import Run

__version__ = "0.1.0"


def load(path: str | Path) -> Run:
    """Read the records of the run in the folder `path`; InputError where there is none."""
    from testbed.record import reader  # pandas, which most processes of a run do not need

    return reader.load(path)
