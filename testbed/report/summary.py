"""One row per system and seed: what a run came to.

Columns (a value that was not measured, or a target that was not reached, is empty, never 0):

system, seed, fabric, steps    steps with a record
final_loss                     mean training loss of the last 50 steps (of all, when there are fewer)
final_accuracy                 last test accuracy (fraction) of the result: of the quantized model where there is one,
                               else of the full-precision one
time_s                         when the last step ended, on the run's clock (dilation divided out)
time_to_target_s               when the running mean of the training loss over the target's window first was at or
                               below the target loss; where only an accuracy is the target, the first test at or above
wan_bytes, lan_bytes           on the wire, headers included, over all links between regions, inside regions
compression                    baseline's WAN bytes per step / this system's, same seed
speedup_vs_baseline            baseline's time_to_target_s / this system's, same seed
status                         "finished", "interrupted", "failed", "partial"
target                         in words: "loss <= 1.7"
steps_to_target                steps done when the target was reached
mean_step_s, mean_compute_s    time per step; what a worker's gradient was charged of it
accuracy_full, accuracy_quantized, accuracy_ema    last test accuracy of each model
model, data, profile, compute, dilation            what it was measured on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from testbed.record.info import RunInfo
from testbed.record.reader import Result, Run
from testbed.report.interval import half_width

BASELINE = "baseline"
FINAL_STEPS = 50
DEFAULT_WINDOW = 10

COLUMNS = (
    *("system", "seed", "fabric", "steps", "final_loss", "final_accuracy", "time_s", "time_to_target_s"),
    *("wan_bytes", "lan_bytes", "compression", "speedup_vs_baseline"),
    *("status", "target", "steps_to_target", "mean_step_s", "mean_compute_s"),
    *("accuracy_full", "accuracy_quantized", "accuracy_ema", "model", "data", "profile", "compute", "dilation"),
)
METRICS = (
    *("steps", "final_loss", "final_accuracy", "time_s", "time_to_target_s", "wan_bytes", "lan_bytes"),
    *("compression", "speedup_vs_baseline", "steps_to_target", "mean_step_s", "mean_compute_s"),
    *("accuracy_full", "accuracy_quantized", "accuracy_ema"),
)
_INTEGERS = ("wan_bytes", "lan_bytes", "steps_to_target")


@dataclass(frozen=True)
class Target:
    """What a system is timed to: a training loss (mean of `window` steps) or, without one, a test accuracy."""

    loss: float | None = None
    accuracy: float | None = None
    window: int = DEFAULT_WINDOW

    @classmethod
    def of(cls, info: RunInfo) -> Target:
        """The target in the experiment of a run; empty where it names none."""
        stated = section(info, "target")
        loss, accuracy = (stated.get(key) for key in ("loss", "accuracy"))
        return cls(loss, accuracy if loss is None else None, max(1, int(stated.get("window") or DEFAULT_WINDOW)))

    @property
    def stated(self) -> bool:
        """Whether there is one."""
        return self.loss is not None or self.accuracy is not None

    def __str__(self) -> str:
        if self.loss is not None:
            return f"loss ≤ {self.loss:g}"
        return "" if self.accuracy is None else f"accuracy ≥ {100 * self.accuracy:g} %"


def section(info: RunInfo, name: str) -> dict[str, Any]:
    """A table of the experiment; empty where the record has none."""
    found = info.experiment.get(name)
    return found if isinstance(found, dict) else {}


def model_name(info: RunInfo) -> str:
    """The model of the experiment ("" where the record does not say)."""
    stated = info.experiment.get("model")
    return stated if isinstance(stated, str) else str(section(info, "model").get("name") or "")


def data_name(info: RunInfo) -> str:
    """The data set, marked when a generated stand-in took its place."""
    name = info.data.dataset or str(section(info, "data").get("dataset") or "")
    return f"stand-in for {name}" if info.data.stand_in else name


def summarize(run: Run, baseline: str = BASELINE) -> pd.DataFrame:
    """One row per system and seed of `run`, columns as in the head of this module."""
    return relate(measure(run), baseline)


def measure(run: Run) -> pd.DataFrame:
    """The rows of `summarize` without what relates them to the baseline."""
    info, target = run.info, Target.of(run.info)
    shared = {
        "fabric": info.fabric,
        "target": str(target),
        "model": model_name(info),
        "data": data_name(info),
        "profile": info.profile,
        "compute": info.compute,
        "dilation": info.dilation,
    }
    rows = [{**_measure(result, target), **shared} for result in run.results]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = {name: "float64" for name in METRICS} | {name: "Int64" for name in _INTEGERS}
    return frame.astype(numbers | {"seed": "int64", "steps": "int64"})


def _measure(result: Result, target: Target) -> dict[str, Any]:
    steps, evaluations = result.steps, result.evaluations
    row: dict[str, Any] = {"system": result.system, "seed": result.seed, "status": result.status, "steps": len(steps)}
    for model in ("full", "quantized", "ema"):
        row[f"accuracy_{model}"] = _last_accuracy(evaluations, model)
    quantized = not np.isnan(row["accuracy_quantized"])
    row["final_accuracy"] = row["accuracy_quantized"] if quantized else row["accuracy_full"]
    if len(steps):
        row["final_loss"] = steps["loss"].to_numpy()[-FINAL_STEPS:].mean()
        row["time_s"] = steps["time_s"].max()
        row["mean_step_s"] = row["time_s"] / len(steps)
        row["mean_compute_s"] = steps["compute_s"].mean()
    reached = _reach(result, target, "quantized" if quantized else "full")
    if reached is not None:
        row["time_to_target_s"], row["steps_to_target"] = reached
    if result.link_bytes:
        wan = sum(total for link, total in result.link_bytes.items() if is_wan(link))
        row["wan_bytes"], row["lan_bytes"] = wan, sum(result.link_bytes.values()) - wan
    return row


def is_wan(link: str) -> bool:
    """Whether a link "src>dst" joins two regions (a host's name has a "/")."""
    return "/" not in link


def _last_accuracy(evaluations: pd.DataFrame, model: str) -> float:
    accuracies = evaluations.loc[evaluations["model"] == model, "accuracy"]
    return float(accuracies.iloc[-1]) if len(accuracies) else np.nan


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each `window` consecutive values, at the last of them; NaN before there are that many.

    Each mean is taken on its own, so that one huge or NaN value spoils no more than `window` of them.
    """
    means = np.full(len(values), np.nan)
    if len(values) >= window:
        means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    return means


def _reach(result: Result, target: Target, model: str) -> tuple[float, int] | None:
    """Time and number of steps at which the target was first reached; None if it never was."""
    if target.loss is not None:
        steps = result.steps
        hits = np.flatnonzero(running_mean(steps["loss"].to_numpy(), target.window) <= target.loss)
        if len(hits):
            return float(steps["time_s"].iloc[hits[0]]), int(steps["step"].iloc[hits[0]]) + 1
    elif target.accuracy is not None:
        tests = result.evaluations
        good = tests[(tests["model"] == model) & (tests["accuracy"] >= target.accuracy)]
        if len(good):
            return float(good["time_s"].iloc[0]), int(good["step"].iloc[0])
    return None


def relate(frame: pd.DataFrame, baseline: str = BASELINE, by: Sequence[str] = ("seed",)) -> pd.DataFrame:
    """Fill `compression` and `speedup_vs_baseline`: each row against the baseline's with the same `by`."""
    keys = list(by)
    rates = frame[keys].assign(
        wan_per_step=frame["wan_bytes"].astype("float64") / frame["steps"].where(frame["steps"] > 0),
        to_target=frame["time_to_target_s"],
    )
    base = rates[frame["system"] == baseline].drop_duplicates(keys)
    both = rates.merge(base, on=keys, how="left", suffixes=("", "_base"))

    def ratio(name: str) -> np.ndarray:
        above, below = both[f"{name}_base"].to_numpy(), both[name].to_numpy()
        return np.divide(above, below, out=np.full(len(both), np.nan), where=(above > 0) & (below > 0))

    return frame.assign(compression=ratio("wan_per_step"), speedup_vs_baseline=ratio("to_target"))


def aggregate(frame: pd.DataFrame, by: Sequence[str] = ("system",)) -> pd.DataFrame:
    """Mean and 95 % t-interval over the seeds of each system.

    Returns
    -------
    One row per system in order of first appearance: the `by` columns, `seeds`, `reached` (how many of them reached
    the target), and for each metric of `summarize` its mean, `<metric>_low` and `<metric>_high`. The interval is
    empty for one seed. A metric that a seed lacks is empty: leaving out the seeds that never reached the target
    would make the rest look faster than they are.
    """
    rows = []
    for key, group in frame.groupby(list(by), sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(by, key, strict=True))
        row["seeds"], row["reached"] = len(group), int(group["time_to_target_s"].notna().sum())
        for metric in METRICS:
            values = group[metric].to_numpy(dtype="float64", na_value=np.nan)
            mean, half = values.mean(), half_width(values)
            row |= {metric: mean, f"{metric}_low": mean - half, f"{metric}_high": mean + half}
        rows.append(row)
    columns = [*by, "seeds", "reached", *(f"{m}{end}" for m in METRICS for end in ("", "_low", "_high"))]
    return pd.DataFrame(rows, columns=columns)
