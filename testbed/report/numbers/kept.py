"""What kept runs know of a model: how many steps a system takes to the target, over the baseline's."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path

import numpy as np

from testbed.errors import InputError
from testbed.record.info import RunInfo, read_facts
from testbed.report.numbers.interval import of_ratios

KEPT = Path("results", "reference")  # in a clone
RECORDS = "records"  # folders of what tables are made of, which are no tables to be quoted
BASELINE = "baseline"
Steps = dict[tuple[str, int], tuple[float, float]]  # to the target, by system and seed, and by what part that is open


@dataclass(frozen=True)
class Kept:
    """Of the kept run of a model that has most seeds.

    Attributes
    ----------
    run : its folder; empty where no run of the model is kept
    ratios : by system and period: `ratio`, geometric mean of the seeds' steps over the baseline's, and the ends of
        its 95 % interval, `low` and `high`, None of one seed
    """

    run: str = ""
    seeds: int = 0
    ratios: Mapping[tuple[str, int], Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def periods(self) -> set[int]:
        """Those with which systems that do not synchronise in every step have been run."""
        return {period for _, period in self.ratios} - {1}


def kept_of(model: str, folder: Path = KEPT) -> Kept:
    """What the kept runs below `folder` say of a model; none that repeats a system and seed with other settings.

    Raises
    ------
    InputError
        A kept run cannot be read.
    """
    paths = [path for path in folder.rglob("summary.csv") if RECORDS not in path.relative_to(folder).parts]
    found = [_read(path, model) for path in sorted(paths)]
    return max(found, key=lambda kept: (kept.seeds, len(kept.ratios)), default=Kept())


def _read(path: Path, model: str) -> Kept:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("model") == model and "steps_to_target" in row]
        steps: Steps = {(row["system"], int(row["seed"])): _steps(row) for row in rows}
        if any(done <= 0 for done, _ in steps.values()):
            raise ValueError("steps_to_target is not above 0")
    except (OSError, csv.Error, KeyError, ValueError, TypeError) as error:  # a column is gone, a number is none
        raise InputError(f"{path}: no summary of a run can be read there ({error}); write it again") from None
    seeds = {seed for system, seed in steps if system == BASELINE}
    if len(steps) < len(rows) or not seeds:
        return Kept()
    periods = _periods(path.with_name("run.json"))
    ratios = {}
    for system in dict.fromkeys(system for system, _ in steps):
        if (ratio := _ratio(steps, system, seeds)) is not None:
            ratios[system, periods.get(system, 1)] = ratio
    return Kept(str(path.parent), len(seeds), ratios)


def _periods(path: Path) -> dict[str, int]:
    """Steps from one synchronisation to the next by system, of those that have them."""
    if not path.is_file():
        return {}
    systems = read_facts(path, RunInfo).experiment.get("systems")
    if not isinstance(systems, dict):
        return {}
    asked = {name: options.get("local_steps") for name, options in systems.items() if isinstance(options, dict)}
    return {name: steps for name, steps in asked.items() if isinstance(steps, int) and steps > 0}


def _steps(row: Mapping[str, str]) -> tuple[float, float]:
    """NaN where the target was not reached; half of what lies between two tests is open."""
    if not row["steps_to_target"]:
        return nan, 0.0
    between_s, time_s = (float(row.get(name) or 0.0) for name in ("resolution_s", "time_to_target_s"))
    return float(row["steps_to_target"]), between_s / time_s / 2 if time_s else 0.0


def _ratio(steps: Steps, system: str, seeds: set[int]) -> dict[str, float | None] | None:
    """None where not every seed has come to the target."""
    own = np.array([steps.get((system, seed), (nan, 0.0)) for seed in sorted(seeds)])
    base = np.array([steps[BASELINE, seed] for seed in sorted(seeds)])
    ratios = own[:, 0] / base[:, 0]
    if not np.isfinite(ratios).all():
        return None
    open_ = 0.0 if system == BASELINE else float((own[:, 1] + base[:, 1]).mean())
    ratio, low, high = (None if isnan(value) else value for value in of_ratios(ratios, open_))
    return {"ratio": ratio, "low": low, "high": high}
