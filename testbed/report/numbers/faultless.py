"""A series of runs under different faults, each against the one without any."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers.asked import experiment_of
from testbed.report.numbers.columns import between
from testbed.report.numbers.disturbed import disturbed
from testbed.report.numbers.interval import of_ratios
from testbed.report.numbers.wording import NONE, duration, is_missing, percent

HEADS = ["faults", "system", "time for all steps", "time to target", "longest stall", "samples lost", "farthest apart"]
NOTE = (
    "Times as multiples of those of the same system and seed without faults: geometric means over seeds and "
    "their 95 % intervals. The other columns are those of *Under faults* in each run's own report, means over seeds."
)
RATIOS = {"time_s": "time_ratio", "time_to_target_s": "target_ratio"}


def faultless(runs: Mapping[str, Run]) -> str | None:
    """The run of a series that has no faults, where others have; else None."""
    without = [label for label, run in runs.items() if not run.info.experiment.get("faults")]
    return without[0] if len(without) == 1 and len(runs) > 1 else None


def against_faultless(runs: Mapping[str, Run], frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What each series of faults did to each system, a row a seed.

    Parameters
    ----------
    runs, frames : the runs of a series by label, and their summaries (`numbers.summary`)

    Returns
    -------
    Columns of `disturbed`, behind `point`; `time_ratio` and `target_ratio` are times as multiples of the faultless
    run's. No rows where there is no such run.
    """
    plain = faultless({label: runs[label] for label in frames})
    if plain is None:
        return pd.DataFrame()
    keys = ["system", "seed"]
    base = _times(frames[plain], runs[plain]).set_index(keys)[list(RATIOS)]
    parts = []
    for label, frame in frames.items():
        if label == plain:
            continue
        ratios = _times(frame, runs[label]).set_index(keys)[list(RATIOS)].div(base).rename(columns=RATIOS).reset_index()
        parts.append(ratios.merge(disturbed(runs[label]), on=keys, how="left").assign(point=label))
    return pd.concat(parts, ignore_index=True)


def _times(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """A summary in which who has not done all steps has no time for them, be it that the run was to end before."""
    done = frame["steps"] >= experiment_of(run.info).training.steps
    return frame.assign(time_s=frame["time_s"].where(done))


def rows(frame: pd.DataFrame, short: Mapping[str, str]) -> list[list[str]]:
    """The table's cells, of each run and system the mean over seeds; `short` is what runs are called."""
    lines = []
    for (point, system), each in frame.groupby(["point", "system"], sort=False):
        ratios = [_ratio(each[name].to_numpy(dtype="float64")) for name in RATIOS.values()]
        means = each[["stall_s", "samples_lost", "divergence"]].mean()
        cells = [
            NONE if is_missing(value) else write(value)
            for value, write in zip(means, (duration, percent, percent), strict=True)
        ]
        lines.append([short[str(point)], look(str(system)).label, *ratios, *cells])
    return lines


def _ratio(values: np.ndarray) -> str:
    """The geometric mean with its interval; a seed that did not come to the end of it makes it none."""
    if not len(values) or np.isnan(values).any():
        return NONE
    return between(*(NONE if is_missing(value) else f"{value:.2f}×" for value in of_ratios(values)))
