"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from testbed.errors import InputError, nearest
from testbed.record.info import FILE_NAME
from testbed.record.reader import Run, load
from testbed.record.series import is_series, labels, swept
from testbed.record.series import read as read_series
from testbed.report.numbers import prices
from testbed.report.numbers.asked import Target, flat
from testbed.report.numbers.summary import (
    BASELINE,
    measure,
    relate,
    relate_to,
    resolution_column,
    speedup_metric,
    wan_only,
)

# Runs that differ in one of these columns of the summary do not answer the same question.
# Each with the table of the experiment that it is of: what a series sweeps there, its runs are meant to differ in.
MUST_AGREE = {
    "model": "model",
    "data": "data",
    "profile": "topology",
    "dilation": "compute",
    "target": "target",
    "compute": "compute",
}
# Parts of an experiment that may differ without a word: what is compared, and how the run was carried out.
FREE = ("systems", "run", "title")
NAMED = 4  # differing settings that are named; of more, the rest is counted
BORROWED = (  # from another run's baseline, where a run has none
    *("compression", "speedup_vs_baseline", "speedup_resolution", "speedup_to_accuracy", "accuracy_resolution"),
    *("step_speedup", "accuracy_vs_baseline"),
)


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    frame : the summaries' rows (`numbers.summary`) behind `run`; `speedup_over_<system>` for each of `over`;
        and `differs`, in every row what the runs do not agree in
    by : columns that tell the rows of a table apart. Seeds of runs that differ in nothing are put together.
    over : systems other than the baseline that speedups are taken over
    differs : the columns of `MUST_AGREE` in which the runs differ; empty unless that was asked for
    caveats : what a reader must know before believing a number
    notes : what a reader may want to know
    """

    frame: pd.DataFrame
    by: tuple[str, ...]
    over: tuple[str, ...]
    differs: tuple[str, ...]
    caveats: list[str]
    notes: list[str]


def load_all(paths: Sequence[str | Path]) -> list[Run]:
    """Read the runs; a series is all of its runs that have begun.

    Raises
    ------
    InputError
        A path holds no run, none of all has begun, or one stands there twice.
    """
    runs = [load(each) for path in paths for each in _runs_of(Path(path))]
    if not runs:
        raise InputError(f"{', '.join(map(str, paths)) or 'nothing'}: no run to compare; name one that has begun")
    if len({run.folder for run in runs}) < len(runs):
        raise InputError("the same run is given twice; name each run once")
    return runs


def _runs_of(path: Path) -> list[Path]:
    if not is_series(path):
        return [path]
    return [path / label for label in read_series(path).points if (path / label / FILE_NAME).is_file()]


def compare(
    runs: Sequence[Run], force: bool = False, over: Sequence[str] = (), target: Target | None = None
) -> Comparison:
    """Put the systems of all runs side by side.

    Speedup and compression are taken against the same seed of the baseline of the same run; a run without one is
    measured against the first other run's of the same setting: a baseline with another batch, network or fault is none
    of its own.

    Parameters
    ----------
    force : also compare runs that differ in a column of `MUST_AGREE`; the comparison is then marked
    over : other systems over which the speedup is wanted, too
    target : what to time the systems to, instead of what the runs' experiments name

    Raises
    ------
    InputError
        The runs differ and `force` is not set, or no run has a system of `over`.
    """
    names = names_of(runs)
    frame = pd.concat([measure(run, target).assign(run=name) for run, name in zip(runs, names, strict=True)])
    frame = frame.reset_index(drop=True)
    settings = dict(zip(names, (_hashed(_setting(run)) for run in runs), strict=True))
    differing = {key: list(dict.fromkeys(frame[key])) for key in MUST_AGREE if frame[key].nunique(dropna=False) > 1}
    undeclared = {key: values for key, values in differing.items() if key not in _declared(runs)}
    if undeclared and not force:
        raise InputError(_difference(frame, undeclared))
    frame = relate(frame, by=("run", "seed"))
    lenders = frame["run"].map(settings) if not differing else frame["run"]  # who differs in much lends to nobody
    borrowed = relate(frame.assign(setting=lenders), by=("setting", "seed"))
    for column in BORROWED:
        frame[column] = frame[column].where(_has(frame, BASELINE), borrowed[column])
    for system in over:
        frame = _over(frame, system, lenders)
    frame["differs"] = ", ".join(undeclared)
    frame = frame[["run", *(column for column in frame.columns if column != "run")]]
    notes = [*_settings(runs), *_prices(runs), *(f"{run.name}: {note}" for run in runs for note in run.missing)]
    others = tuple(system for system in over if system != BASELINE)
    return Comparison(frame, _by(runs, frame, differing), others, tuple(undeclared), _caveats(frame, undeclared), notes)


def names_of(runs: Sequence[Run]) -> list[str]:
    """What runs are called in a comparison: "<target>/<run-id>", or as `labels` has it where that is not one's alone.

    So it is with copies of a run, and with runs of several series that have the same labels.
    """
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else labels([run.folder for run in runs])


def _declared(runs: Sequence[Run]) -> set[str]:
    """The columns of `MUST_AGREE` in which runs of one series may differ, because that is what it sweeps."""
    tables = {key.partition(".")[0] for key in swept([run.folder for run in runs])}
    return {column for column, table in MUST_AGREE.items() if table in tables}


def _difference(frame: pd.DataFrame, differing: dict[str, list[Any]]) -> str:
    key, values = next(iter(differing.items()))
    first = [frame.loc[frame[key] == value, "run"].iloc[0] for value in values[:2]]
    return (
        f"the runs differ in {', '.join(differing)}: {key} is '{values[0]}' in {first[0]} and '{values[1]}' in "
        f"{first[1]}; compare like with like, or ask for it all the same (--force)"
    )


def _has(frame: pd.DataFrame, system: str) -> pd.Series:
    """Whether each row's run has that system."""
    return frame["run"].isin(frame.loc[frame["system"] == system, "run"])


def _over(frame: pd.DataFrame, system: str, lenders: pd.Series) -> pd.DataFrame:
    """With the speedup over a system and its resolution; where a run has it not, over that of another lender's."""
    if system not in set(frame["system"]):
        raise InputError(
            f"--over {system}: no run has that system{nearest(system, list(dict.fromkeys(frame['system'])))}"
        )
    own, metric = relate_to(frame, system, ("run", "seed")), speedup_metric(system)
    columns = [metric, resolution_column(metric)]
    borrowed = relate_to(frame.assign(setting=lenders), system, ("setting", "seed"))
    own[columns] = own[columns].where(_has(frame, system), borrowed[columns])
    return own


def _by(runs: Sequence[Run], frame: pd.DataFrame, differing: dict[str, list[Any]]) -> tuple[str, ...]:
    """Rows of the same system are one row of the table where nothing but the seed tells their runs apart."""
    settings = {_hashed(_setting(run)) for run in runs}
    options = {(one.system, _hashed(one.info.options)) for run in runs for one in run.results}
    alike = len(settings) == 1 and len(options) == frame["system"].nunique()
    if alike and not frame.duplicated(["system", "seed"]).any():
        return ("system",)
    return ("run", "system", *differing)


def _setting(run: Run) -> dict[str, Any]:
    """What a run's numbers depend on, apart from systems and seeds, as recorded: no key is passed over."""
    kept = {key: value for key, value in run.info.experiment.items() if key not in FREE}
    return {**kept, "fabric": run.info.fabric, "dilation": run.info.dilation}


def _hashed(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _settings(runs: Sequence[Run]) -> list[str]:
    """One sentence on the settings in which the runs' experiments differ."""
    each = [dict(flat(_setting(run))) for run in runs]
    keys = list(dict.fromkeys(key for one in each for key in one))
    keys = [key for key in keys if len({str(one.get(key)) for one in each}) > 1]
    if not keys:
        return []
    named = [f"{key} ({', '.join(dict.fromkeys(str(one.get(key)) for one in each))})" for key in keys[:NAMED]]
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return [f"The runs' settings differ in {', '.join(named)}{more}."]


def _caveats(frame: pd.DataFrame, differing: dict[str, list[Any]]) -> list[str]:
    said = [f"NOT LIKE WITH LIKE: the runs differ in {', '.join(differing)}."] if differing else []
    for name, group in frame[frame["data"].str.startswith("stand-in")].groupby("run", sort=False):
        said.append(f"{name}: STAND-IN DATA ({group['data'].iloc[0]}).")
    return said


def _prices(runs: Sequence[Run]) -> list[str]:
    """Where the egress prices come from, or why there are none."""
    used = [wan_only(result.link_bytes) for run in runs for result in run.results]
    without = list(dict.fromkeys(link for links in used for link in prices.unpriced(links)))
    if without:
        more = f" and {len(without) - 1} more" if len(without) > 1 else ""
        return [f"No egress cost: topologies/prices.csv has no price for {without[0]}{more}."]
    return [f"Egress prices: {' '.join(prices.sources())}"] if any(used) else []
