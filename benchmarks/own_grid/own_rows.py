"""What a run says of the map: a row for each system and seed, when it is at the target and when every worker is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil, nan
from typing import Any

import numpy as np
import pandas as pd

import testbed
from testbed.files import write_whole

OURS = "concord"
COLUMNS = ["system", "seed", "steps", "target_s", "held_s", "resolution", "mean_step_s", "computing_s"]
OF_COPIES = ["copies", "average_s"]  # of the others besides, in a cell: see `held`


def ahead(rows: pd.DataFrame, column: str) -> pd.Series:
    """When each system is there, the geometric mean of the seeds, of those of which all are."""
    reached = rows.pivot(index="system", columns="seed", values=column).astype(float).dropna()
    return np.exp(np.log(reached).mean(axis=1))


def is_there(run: testbed.Run) -> bool:
    """Whether every seed came to the target."""
    return bool(run.summary["time_to_target_s"].notna().all())


def steps_needed(run: testbed.Run) -> pd.DataFrame:
    """By system and seed, of those that came to the target: see `Base.needed`."""
    reached = run.summary.set_index(["system", "seed"]).dropna(subset="time_to_target_s")
    done_s = {(result.system, result.seed): times_of(result) for result in run.results}
    steps = [np.interp(at_s, done_s[key], range(len(done_s[key]))) for key, at_s in reached["time_to_target_s"].items()]
    return reached.assign(steps=steps, resolution=open_part(reached))[["steps", "resolution"]]


def times_of(result: Any) -> np.ndarray:
    """When so many steps are done, from none to all."""
    return np.append(0.0, result.steps["time_s"].to_numpy())


def open_part(reached: pd.DataFrame) -> pd.Series:
    """The part by which the time to the target may be off, since it lies between two tests."""
    return reached["resolution_s"] / reached["time_to_target_s"] / 2


def needed_by(run: testbed.Run, seed: str) -> int:
    """The steps after which one seed was at the target, or ended without."""
    row = run.summary.set_index("seed").loc[int(seed)]
    return int(row["steps"] if pd.isna(row["steps_to_target"]) else row["steps_to_target"])


def of_played(run: testbed.Run, closing_s: float) -> pd.DataFrame:
    """A row for each seed of what was played here; `closing_s`: until all hold what is reported."""
    found = run.summary.assign(target_s=run.summary["time_to_target_s"], steps=run.summary["steps_to_target"])
    return _rows(found.assign(held_s=found["target_s"] + closing_s, resolution=open_part(found)))


def of_others(timed: testbed.Run, needed: pd.DataFrame, periods: Mapping[str, int]) -> pd.DataFrame:
    """A row for each system of `periods` and seed, timed here: when as many steps as it needs are done."""
    done_s = {result.system: times_of(result) for result in timed.results}
    rows = []
    for record in timed.summary.to_dict("records"):
        system = record["system"]
        if system not in periods:  # what was timed beside it has been searched again since
            continue
        for seed in needed.index.unique("seed"):
            row = {**record, "seed": seed, **dict.fromkeys(("steps", "resolution", "target_s", "held_s"), nan)}
            if (system, seed) in needed.index:
                row |= needed.loc[(system, seed)]
                row["target_s"] = np.interp(row["steps"], range(len(done_s[system])), done_s[system])
                row |= held(system, done_s[system], row["target_s"], row["steps"], periods[system])
            rows.append(row)
    found = pd.DataFrame(rows)
    return _rows(found).join(found[[each for each in OF_COPIES if each in found]])


def held(system: str, done_s: np.ndarray, target_s: float, steps: float, period: int) -> dict[str, Any]:
    """When every worker holds the model that was at the target after so many steps; all do every `period` steps.

    `copies` is whether each has one of its own meanwhile, and `average_s` what it takes of local SGD to average them.
    """
    if not period:
        return {"held_s": target_s, "copies": False}
    following = ceil(steps / period) * period
    found = {"held_s": float(done_s[following]), "copies": True}
    if "local-sgd" in system:
        took_s = np.diff(done_s[following - period : following + 1])  # its averaging is in the longest step
        found["average_s"] = float(took_s.max() - np.median(took_s))
    return found


def averaged_right_then(others: pd.DataFrame) -> pd.DataFrame:
    """Whoever keeps copies may have them averaged once right then, in the cheapest way that local SGD has there.

    That is in four bits where it was played so. That the average is at the target, too, is taken for granted.
    """
    if "average_s" not in others:
        return others
    then_s = (others["target_s"] + others["average_s"].min()).where(others["copies"].eq(True))
    return others.assign(held_s=pd.concat([others["held_s"], then_s], axis=1).min(axis=1))


def _rows(found: pd.DataFrame) -> pd.DataFrame:
    """With what computing and coding take of the time to the target: none of them is what is waited for after it."""
    return found.assign(computing_s=found["steps"] * (found["mean_compute_s"] + found["mean_codec_s"]))[COLUMNS]


def closing(run: testbed.Run) -> float:
    """What it takes from the last step until every worker holds the average, and its server has heard that it does.

    Servers tell the one above, and it answers, before the run ends: that is the run's own affair and not in it. Events
    are not kept; what they said is, beside the run.
    """
    kept = run.folder / "closing.json"
    if not kept.is_file():
        [result] = run.results
        events = result.events
        said = events[(events["kind"] == "boundary") & events["peer"].str.endswith("/lps", na=False)]
        if not len(said):
            raise SystemExit(f"{run.folder}: does not tell when its regions were done; delete the folder")
        closing_s = said["sent_s"].max() - result.steps["time_s"].max()
        write_whole(kept, json.dumps({"closing_s": closing_s}))
    return float(json.loads(kept.read_text())["closing_s"])


def ends_of(run: testbed.Run) -> pd.DataFrame:
    """A row for each system and seed, of the model that is reported in the end: when, and how good it is."""
    metric = "final_accuracy" if "final_metric" not in run.summary else "final_metric"
    held_s = [float(result.tests["time_s"].max()) for result in run.results]
    found = run.summary.assign(metric=run.summary[metric], held_s=held_s)
    return found[["system", "seed", "steps", "held_s", "final_loss", "metric", "mean_step_s"]]


def until_held(ends: pd.DataFrame, cell: pd.DataFrame, periods: Mapping[str, int]) -> pd.DataFrame:
    """When every worker holds it: who ends between two averagings (`periods`) takes one right then, as in its `cell`.

    That is what `averaged_right_then` made of it there: of the seeds the longest, others' own averaging being sooner.
    """
    right_then_s = (cell["held_s"] - cell["target_s"]).groupby(cell["system"]).max()
    apart = [
        bool(period := periods.get(name, 0)) and steps % period > 0
        for name, steps in zip(ends["system"], ends["steps"], strict=True)
    ]
    return ends.assign(held_s=ends["held_s"] + ends["system"].map(right_then_s).fillna(0.0).where(apart, 0.0))


def in_as_much_time(ends: pd.DataFrame) -> int:
    """The steps that ours makes till the other's is held, the end with them; `ends`: see `until_held`.

    None, 0, where the end alone takes longer than that.
    """
    mean = ends.groupby("system")[["held_s", "steps", "mean_step_s"]].mean()
    ours, other_s = mean.loc[OURS], mean["held_s"].drop(OURS).iloc[0]
    end_s = ours["held_s"] - ours["steps"] * ours["mean_step_s"]
    return max(0, int((other_s - end_s) / ours["mean_step_s"]))
