"""The map of `testbed sensitivity` in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from testbed.report.looks import look
from testbed.report.numbers.summary import BASELINE
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, duration, is_missing, times
from testbed.report.pictures.sensitivity import Varied


def markdown(frame: pd.DataFrame, axes: Sequence[Varied]) -> str:
    """A table for each axis: the baseline's step and each system's speedup, at every value.

    Parameters
    ----------
    frame : as `testbed.harness.sensitivity.measured` returns it
    """
    parts = []
    for axis in axes:
        rows = frame[frame["axis"] == axis.name]
        values = list(dict.fromkeys(rows["value"]))
        cells = []
        for system in dict.fromkeys(rows["system"]):
            own = rows[rows["system"] == system].set_index("value")
            column = own["step_s"] if system == BASELINE else own["speedup"]
            write = duration if system == BASELINE else times
            found = [column.get(value) for value in values]
            name = f"{look(system).label}: a step" if system == BASELINE else look(system).label
            cells.append([name, *(NONE if is_missing(each) else write(each) for each in found)])
        heads = [axis.label, *(value if isinstance(value, str) else f"{value:,g}" for value in values)]
        parts.append(markdown_table(heads, cells))
    return "\n\n".join(parts) + "\n"
