"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from testbed.errors import InputError
from testbed.record.reader import Run, load
from testbed.report.summary import BASELINE, measure, relate

# Runs that differ in one of these columns of the summary do not answer the same question.
MUST_AGREE = ("model", "data", "profile", "dilation", "target", "compute")


def load_all(paths: Sequence[str | Path]) -> list[Run]:
    """Read the runs.

    Raises
    ------
    InputError
        A path holds no run, or stands there twice.
    """
    runs = [load(path) for path in paths]
    if len({run.folder for run in runs}) < len(runs):
        raise InputError("the same run is given twice; name each run once")
    return runs


def compare(runs: Sequence[Run], mixed: bool = False, baseline: str = BASELINE) -> pd.DataFrame:
    """The summaries of all runs in one frame: its columns, behind `run`, and `differs` at the end.

    Speedup and compression are taken against the baseline of the same run and seed; a run without one is measured
    against the first other run's on the same fabric, unless the runs differ.

    Parameters
    ----------
    mixed : also compare runs that differ in model, data, profile, dilation, target or compute model; `differs` then
        names, in every row, what the runs do not agree in.

    Raises
    ------
    InputError
        The runs differ and `mixed` is not set.
    """
    frame = pd.concat([measure(run).assign(run=run.name) for run in runs], ignore_index=True)
    differing = {key: list(dict.fromkeys(frame[key])) for key in MUST_AGREE if frame[key].nunique(dropna=False) > 1}
    if differing and not mixed:
        key, values = next(iter(differing.items()))
        first = [frame.loc[frame[key] == value, "run"].iloc[0] for value in values[:2]]
        raise InputError(
            f"the runs differ in {', '.join(differing)}: {key} is '{values[0]}' in {first[0]} and '{values[1]}' in "
            f"{first[1]}; compare like with like, or ask for a mixed comparison (--mixed)"
        )
    frame = relate(frame, baseline, by=("run", "seed"))
    if not differing:
        alone = ~frame["run"].isin(frame.loc[frame["system"] == baseline, "run"])
        borrowed = relate(frame, baseline, by=("fabric", "seed"))
        for column in ("compression", "speedup_vs_baseline"):
            frame[column] = frame[column].where(~alone, borrowed[column])
    frame["differs"] = ", ".join(differing)
    return frame[["run", *(column for column in frame.columns if column != "run")]]
