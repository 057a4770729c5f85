"""One row per system and seed: what a run came to.

Columns (a value that was not measured, or a target that was not reached, is empty, never 0):

system, seed, fabric, steps    steps with a record
final_loss                     mean training loss of the last 50 steps (of all, when there are fewer)
final_accuracy                 last test accuracy (fraction) of the result: of the quantized model where there is one,
                               else of the full-precision one
time_s                         when the last step ended, on the run's clock (dilation divided out)
time_to_target_s               when the running mean of the training loss over the target's window first was at or
                               below the target loss; where only an accuracy is the target, time_to_accuracy_s
wan_bytes, lan_bytes           on the wire, headers included, over all links between regions, inside regions
compression                    baseline's WAN bytes per step / this system's, same seed
speedup_vs_baseline            baseline's time_to_target_s / this system's, same seed
status                         "finished", "ended", "interrupted", "failed", "partial"
target                         in words: "loss ≤ 1.7, accuracy ≥ 45 %"
steps_to_target                steps done when the target was reached
mean_step_s, mean_compute_s    time per step; what a worker was charged for computing of it,
mean_codec_s                   and for encoding and decoding;
mean_lan_s, mean_wan_s         what the messages that the step waited for spent on links inside, between regions;
mean_waiting_s                 the rest, where all of these were recorded: servers' computing, slower workers, guards
time_to_accuracy_s             when a test of the result first was at or above the target accuracy
speedup_to_accuracy            baseline's time_to_accuracy_s / this system's, same seed
wan_bytes_to_target            WAN bytes up to time_to_target_s
egress_usd                     price of the WAN bytes (`numbers.prices`); empty where a pair of regions has none
accuracy_full, accuracy_quantized, accuracy_ema    last test accuracy of each model
model, data, profile, compute, dilation            what it was measured on
metric, final_metric           the data set's main metric, and its last value of the result, e.g. bits_per_character
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed.record.reader import Result, Run, load
from testbed.report.numbers import prices
from testbed.report.numbers.asked import Target, data_name, model_name
from testbed.report.numbers.interval import half_width

BASELINE = "baseline"
FINAL_STEPS = 50

COLUMNS = (
    *("system", "seed", "fabric", "steps", "final_loss", "final_accuracy", "time_s", "time_to_target_s"),
    *("wan_bytes", "lan_bytes", "compression", "speedup_vs_baseline"),
    *("status", "target", "steps_to_target", "mean_step_s", "mean_compute_s"),
    *("mean_codec_s", "mean_lan_s", "mean_wan_s", "mean_waiting_s"),
    *("time_to_accuracy_s", "speedup_to_accuracy", "wan_bytes_to_target", "egress_usd"),
    *("accuracy_full", "accuracy_quantized", "accuracy_ema", "model", "data", "profile", "compute", "dilation"),
    *("metric", "final_metric"),
)
METRICS = (
    *("steps", "final_loss", "final_accuracy", "time_s", "time_to_target_s", "wan_bytes", "lan_bytes"),
    *("compression", "speedup_vs_baseline", "steps_to_target", "mean_step_s", "mean_compute_s"),
    *("mean_codec_s", "mean_lan_s", "mean_wan_s", "mean_waiting_s"),
    *("time_to_accuracy_s", "speedup_to_accuracy", "wan_bytes_to_target", "egress_usd"),
    *("accuracy_full", "accuracy_quantized", "accuracy_ema", "final_metric"),
)
SPENT = ("compute", "codec", "lan", "wan", "waiting")  # where a step's time went: mean_<name>_s
REACHED = {"reached": "time_to_target_s", "reached_accuracy": "time_to_accuracy_s"}  # counted by `aggregate`
_INTEGERS = ("wan_bytes", "lan_bytes", "steps_to_target", "wan_bytes_to_target")


def read(folder: Path) -> tuple[Run, pd.DataFrame]:
    """The run in `folder` and its summary (`summarize`).

    Raises
    ------
    InputError
        There is no run in `folder`.
    """
    run = load(folder)
    return run, summarize(run)


def summarize(run: Run, baseline: str = BASELINE) -> pd.DataFrame:
    """One row per system and seed of `run`, columns as in the head of this module."""
    return relate(measure(run), baseline)


def measure(run: Run, target: Target | None = None) -> pd.DataFrame:
    """The rows of `summarize` without what relates them to the baseline; `target` replaces the run's own."""
    info, target = run.info, target or Target.of(run.info)
    shared = {
        "fabric": info.fabric,
        "target": ", ".join(target.in_words),
        "model": model_name(info),
        "data": data_name(info),
        "profile": info.profile,
        "compute": info.compute,
        "dilation": info.dilation,
        "metric": info.metric.name,
    }
    rows = [{**_measure(result, target, info.metric.name), **shared} for result in run.results]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = {name: "float64" for name in METRICS} | {name: "Int64" for name in _INTEGERS}
    return frame.astype(numbers | {"seed": "int64", "steps": "int64"})


def _measure(result: Result, target: Target, metric: str) -> dict[str, Any]:
    """One row; frames are read column by column and let go again, so that any number of results fits the memory."""
    steps, tests = result.frame("steps"), result.frame("evaluations")
    row: dict[str, Any] = {"system": result.system, "seed": result.seed, "status": result.status, "steps": len(steps)}
    for model in ("full", "quantized", "ema"):
        row[f"accuracy_{model}"] = _last(tests, model, "accuracy")
    result_model = "quantized" if (tests["model"] == "quantized").any() else "full"
    row["final_accuracy"] = row[f"accuracy_{result_model}"]
    row["final_metric"] = _last(tests, result_model, metric)
    if len(steps):
        row["final_loss"] = steps["loss"].to_numpy()[-FINAL_STEPS:].mean()
        row["time_s"] = steps["time_s"].max()
        row["mean_step_s"] = row["time_s"] / len(steps)
        row |= {f"mean_{name}_s": steps[f"{name}_s"].mean() for name in SPENT[:-1]}
        spent_s = sum(row[f"mean_{name}_s"] for name in SPENT[:-1])
        row["mean_waiting_s"] = np.maximum(row["mean_step_s"] - spent_s, 0.0)
    by_loss = _reach_loss(steps, target)
    by_test = _reach_test(tests[tests["model"] == result_model], target)
    row["time_to_accuracy_s"] = by_test[0] if by_test and target.accuracy is not None else np.nan
    reached = by_loss if target.loss is not None else by_test
    if reached is not None:
        row["time_to_target_s"], row["steps_to_target"] = reached
    return row | _traffic(result, reached[0] if reached else None)


def _traffic(result: Result, until_s: float | None) -> dict[str, Any]:
    """Bytes and their price; nothing where no link was measured."""
    totals = result.link_bytes
    if not totals:
        return {}
    wan = wan_only(totals)
    row: dict[str, Any] = {"wan_bytes": sum(wan.values()), "egress_usd": prices.egress_usd(wan)}
    row["lan_bytes"] = sum(totals.values()) - row["wan_bytes"]
    if until_s is not None:
        row["wan_bytes_to_target"] = sum(result.link_bytes_until(until_s, list(wan)).values())
    return row


def wan_only(link_bytes: Mapping[str, int]) -> dict[str, int]:
    """The links between regions."""
    return {link: total for link, total in link_bytes.items() if is_wan(link)}


def is_wan(link: str) -> bool:
    """Whether a link "src>dst" joins two regions (a host's name has a "/")."""
    return "/" not in link


def _last(evaluations: pd.DataFrame, model: str, metric: str) -> float:
    """The last value of a model's metric."""
    if metric not in evaluations:
        return np.nan
    values = evaluations.loc[evaluations["model"] == model, metric]
    return float(values.iloc[-1]) if len(values) else np.nan


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each `window` consecutive values, at the last of them; NaN before there are that many.

    Each mean is taken on its own, so that one huge or NaN value spoils no more than `window` of them.
    """
    means = np.full(len(values), np.nan)
    if len(values) >= window:
        means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    return means


def _reach_loss(steps: pd.DataFrame, target: Target) -> tuple[float, int] | None:
    """Time and number of steps at which the target loss was first reached; None if it never was."""
    if target.loss is None:
        return None
    hits = np.flatnonzero(running_mean(steps["loss"].to_numpy(), target.window) <= target.loss)
    return (float(steps["time_s"].iloc[hits[0]]), int(steps["step"].iloc[hits[0]]) + 1) if len(hits) else None


def _reach_test(tests: pd.DataFrame, target: Target) -> tuple[float, int] | None:
    """Time and step of the first test that was as good as the target's accuracy or metric."""
    reached = target.reached_by(tests)
    good = tests[:0] if reached is None else tests[reached]
    return (float(good["time_s"].iloc[0]), int(good["step"].iloc[0])) if len(good) else None


def relate(frame: pd.DataFrame, baseline: str = BASELINE, by: Sequence[str] = ("seed",)) -> pd.DataFrame:
    """Fill `compression` and both speedups: each row against the baseline's with the same `by`."""
    per_step = frame["wan_bytes"].astype("float64") / frame["steps"].where(frame["steps"] > 0)
    times = frame.assign(wan_per_step=per_step)
    return frame.assign(
        compression=ratio(times, "wan_per_step", baseline, by),
        speedup_vs_baseline=ratio(times, "time_to_target_s", baseline, by),
        speedup_to_accuracy=ratio(times, "time_to_accuracy_s", baseline, by),
    )


def ratio(frame: pd.DataFrame, metric: str, over: str, by: Sequence[str] = ("seed",)) -> np.ndarray:
    """`metric` of system `over`, in the row with the same `by`, / each row's own; NaN where either is missing or 0."""
    keys = list(by)
    values = frame[[*keys, metric]]
    others = values[frame["system"] == over].drop_duplicates(keys)
    both = values.merge(others, on=keys, how="left", suffixes=("", "_of"))
    above, below = (both[name].to_numpy(dtype="float64", na_value=np.nan) for name in (f"{metric}_of", metric))
    return np.divide(above, below, out=np.full(len(both), np.nan), where=(above > 0) & (below > 0))


def aggregate(frame: pd.DataFrame, by: Sequence[str] = ("system",), metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """Mean and 95 % t-interval over the seeds of each system.

    Returns
    -------
    One row per system in order of first appearance: the `by` columns, `seeds`, `reached` and `reached_accuracy` (how
    many of them reached the target, the target accuracy), and for each of `metrics` its mean, `<metric>_low` and
    `<metric>_high`. The interval is empty for one seed. A metric that a seed lacks is empty: leaving out the seeds
    that never reached the target would make the rest look faster than they are.
    """
    rows = []
    for key, group in frame.groupby(list(by), sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(by, key, strict=True))
        row["seeds"] = len(group)
        row |= {name: int(group[metric].notna().sum()) for name, metric in REACHED.items()}
        for metric in metrics:
            values = group[metric].to_numpy(dtype="float64", na_value=np.nan)
            mean, half = values.mean(), half_width(values)
            row |= {metric: mean, f"{metric}_low": mean - half, f"{metric}_high": mean + half}
        rows.append(row)
    columns = [*by, "seeds", *REACHED, *(f"{m}{end}" for m in metrics for end in ("", "_low", "_high"))]
    return pd.DataFrame(rows, columns=columns)
