"""Result tables, heads and cells: of one run, of several side by side, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from testbed.report.numbers import columns
from testbed.report.numbers.columns import Column, table, with_rest
from testbed.report.numbers.compare import Comparison
from testbed.report.numbers.summary import BASELINE, counted, speedup_metric
from testbed.report.numbers.wording import times

SEEDS_NOTE = (
    "Mean over the seeds ± half its 95 % interval (Student's t). Of ratios, which are paired by seed, the geometric "
    "mean and the ends of its interval; a speedup's is wider by what lies between two tests."
)


def rows(frame: pd.DataFrame, by: Sequence[str] = ("system",)) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a result table: one row per system (or other key), over its seeds if there are several.

    Where nothing crosses a WAN, all in one region, the bytes inside it are shown instead. Of what has not begun there
    is no row.
    """
    frame = counted(frame, by)
    shown = {"lan_bytes"} if frame["wan_bytes"].eq(0).fillna(False).all() else {"wan_bytes", "compression"}
    traffic = [column for column in columns.traffic(frame) if column.metric in shown]
    speedup = [Column("speedup", speedup_metric(BASELINE), times)] if (frame["target"] != "").any() else []
    return table(frame, by, [*columns.result(frame), *columns.timing(frame, over=()), *traffic, *speedup])


def compared_tables(found: Comparison) -> dict[str, tuple[list[str], list[list[str]]]]:
    """The tables of a comparison, heads and cells, by title."""
    frame = with_rest(found.frame)
    parts = {
        "Steps" if columns.all_timing_only(frame) else "Loss and accuracy": columns.result(frame),
        "Time": columns.timing(frame, (BASELINE, *found.over)),
        "Traffic": columns.traffic(frame),
        "Where a step's time went": columns.spent(frame),
    }
    return {head: table(frame, found.by, part) for head, part in parts.items()}


def markdown_table(heads: list[str], cells: list[list[str]]) -> str:
    """A table as Markdown: the first column to the left, all others to the right."""
    rule = ["---", *("---:" for _ in heads[1:])]
    lines = [heads, rule, *([markdown_text(cell).replace("|", "\\|") for cell in line] for line in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_text(text: str) -> str:
    """Text of a record as Markdown that shows it as it stands, on one line: no HTML, no link, no heading."""
    line = re.sub(r"[\\`<\[\]]", r"\\\g<0>", " ".join(text.split()))
    return re.sub(r"^(?=[#>])", r"\\", line)


def csv(frame: pd.DataFrame) -> str:
    """A summary as CSV: empty where nothing was measured, numbers with twelve significant digits at most.

    An interval of a millionth of its mean, the smallest that is shown (`columns.NOTHING`), has six of them.
    """
    return frame.to_csv(index=False, float_format="%.12g")
