"""One row per system and seed: what a run came to.

Columns (a value that was not measured, or a target that was not reached, is empty, never 0):

system, seed, fabric, steps    steps with a record
final_loss                     mean training loss of the last 50 steps (of all, when there are fewer)
final_accuracy                 last test accuracy (fraction) of the result: of the quantized model where there is one,
                               else of the full-precision one
time_s                         when the last step ended, on the run's clock (dilation divided out)
time_to_target_s               when the model that is reported first was at the target loss, or, where only an accuracy
                               is the target, time_to_accuracy_s (`numbers.reached` says how that is told)
resolution_s                   between the two tests of the model that time_to_target_s lies between
wan_bytes, lan_bytes           on the wire, headers included, of messages between regions, inside regions; each once
compression                    baseline's WAN bytes per step / this system's, same seed; empty before it has `exchanged`
speedup_vs_baseline            baseline's time_to_target_s / this system's, same seed
speedup_resolution             by what fraction that may be off since both times lie between two tests: half of each
                               resolution_s against its time
accuracy_vs_baseline           final_accuracy less baseline's, same seed
status                         "finished", "ended", "interrupted", "failed", "diverged", "partial"
target                         in words: "loss ≤ 1.7, accuracy ≥ 45 %"
steps_to_target                steps done when the target was reached
mean_step_s, mean_compute_s    time per step; what a worker was charged for computing of it,
mean_codec_s                   and for encoding and decoding;
mean_lan_s, mean_wan_s         what the messages that the step waited for spent on links inside, between regions;
mean_waiting_s                 the rest, where all of these were recorded: servers' computing, slower workers, guards
time_to_accuracy_s             when a test of the result was first as good as the target accuracy, or other metric, asks
speedup_to_accuracy            baseline's time_to_accuracy_s / this system's, same seed
accuracy_resolution_s          as resolution_s, of time_to_accuracy_s; and
accuracy_resolution            as speedup_resolution, of speedup_to_accuracy
wan_bytes_to_target            WAN bytes up to time_to_target_s
egress_usd                     price of the WAN bytes (`numbers.prices`); empty where a pair of regions has none
accuracy_full, accuracy_quantized, accuracy_ema    last test accuracy of each model
model, data, profile, compute, dilation            what it was measured on
exchanged                      whether a region has sent another anything of the system's own, not only the testbed's
                               mark that ends a segment; empty where nothing is known of the links
metric, final_metric           the data set's main metric, and its last value of the result, e.g. bits_per_character
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed.message import Message
from testbed.record.events import is_wan
from testbed.record.info import OVER
from testbed.record.reader import Result, Run, load
from testbed.report.numbers import prices, reached
from testbed.report.numbers.asked import Target, data_name, model_name, reported, timing_only
from testbed.report.numbers.interval import half_width, of_ratios
from testbed.roles.node import MARKER
from testbed.wan.plan import region_of

BASELINE = "baseline"
FINAL_STEPS = 50

COLUMNS = (
    *("system", "seed", "fabric", "steps", "final_loss", "final_accuracy", "time_s", "time_to_target_s"),
    *("wan_bytes", "lan_bytes", "compression", "speedup_vs_baseline"),
    *("resolution_s", "speedup_resolution", "accuracy_vs_baseline"),
    *("status", "target", "steps_to_target", "mean_step_s", "mean_compute_s"),
    *("mean_codec_s", "mean_lan_s", "mean_wan_s", "mean_waiting_s"),
    *("time_to_accuracy_s", "speedup_to_accuracy", "wan_bytes_to_target", "egress_usd"),
    *("accuracy_full", "accuracy_quantized", "accuracy_ema", "model", "data", "profile", "compute", "dilation"),
    *("metric", "final_metric", "step_speedup", "timing_only", "exchanged"),
    *("accuracy_resolution_s", "accuracy_resolution"),
)
METRICS = (
    *("steps", "final_loss", "final_accuracy", "time_s", "time_to_target_s", "wan_bytes", "lan_bytes"),
    *("compression", "speedup_vs_baseline", "steps_to_target", "mean_step_s", "mean_compute_s"),
    *("mean_codec_s", "mean_lan_s", "mean_wan_s", "mean_waiting_s"),
    *("time_to_accuracy_s", "speedup_to_accuracy", "wan_bytes_to_target", "egress_usd"),
    *("accuracy_full", "accuracy_quantized", "accuracy_ema", "final_metric"),
    *("resolution_s", "speedup_resolution", "accuracy_vs_baseline", "step_speedup"),
)
RATIOS = ("compression", "speedup_vs_baseline", "speedup_to_accuracy", "step_speedup")  # and any speedup_over_<system>
SPENT = ("compute", "codec", "lan", "wan", "waiting")  # where a step's time went: mean_<name>_s
MARK_BYTES = Message(MARKER, 2**32).nbytes
SMALL_BYTES = 1000  # what crosses a WAN link in a step of a system that may have exchanged nothing yet
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


def summarize(run: Run) -> pd.DataFrame:
    """One row per system and seed of `run`, columns as in the head of this module."""
    return relate(measure(run))


def measure(run: Run, target: Target | None = None) -> pd.DataFrame:
    """The rows of `summarize`, not related to the baseline yet; `target` is in place of the run's, window apart."""
    info, own = run.info, Target.of(run.info)
    target = own if target is None else replace(target, model=own.model, window=own.window)
    shared = {
        "fabric": info.fabric,
        "target": ", ".join(target.in_words),
        "model": model_name(info),
        "data": data_name(info),
        "profile": info.profile,
        "compute": info.compute,
        "dilation": info.dilation,
        "metric": info.metric.name,
        "timing_only": timing_only(info),
    }
    rows = [{**_measure(result, target, info.metric.name), **shared} for result in run.results]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    names = (*METRICS, "accuracy_resolution_s", "accuracy_resolution")
    numbers = dict.fromkeys(names, "float64") | dict.fromkeys(_INTEGERS, "Int64")
    return frame.astype(numbers | {"seed": "int64", "steps": "int64"})


def _measure(result: Result, target: Target, metric: str) -> dict[str, Any]:
    """One row; frames are read column by column and let go again, so that any number of results fits the memory."""
    steps, evaluations = result.frame("steps"), result.frame("evaluations")
    tests, probes = evaluations[~evaluations["probe"]], evaluations[evaluations["probe"]]
    row: dict[str, Any] = {"system": result.system, "seed": result.seed, "status": result.status, "steps": len(steps)}
    for model in ("full", "quantized", "ema"):
        row[f"accuracy_{model}"] = last_value(tests, model, "accuracy")
    result_model = reported(set(tests["model"]), target.model)
    row["final_accuracy"] = row[f"accuracy_{result_model}"]
    row["final_metric"] = last_value(tests, result_model, metric)
    if len(steps):
        row["final_loss"] = steps["loss"].to_numpy()[-FINAL_STEPS:].mean()
        row["time_s"] = steps["time_s"].max()
        row["mean_step_s"] = row["time_s"] / len(steps)
        row |= {f"mean_{name}_s": steps[f"{name}_s"].mean() for name in SPENT[:-1]}
        spent_s = sum(row[f"mean_{name}_s"] for name in SPENT[:-1])
        row["mean_waiting_s"] = np.maximum(row["mean_step_s"] - spent_s, 0.0)
    by_loss = reached.by_loss(steps, probes, target)
    by_test = reached.by_test(tests[tests["model"] == result_model], probes, target)
    if by_test is not None:
        row |= {"time_to_accuracy_s": by_test.time_s, "accuracy_resolution_s": by_test.resolution_s}
    first = by_loss if target.loss is not None else by_test
    if first is not None:
        row |= {"time_to_target_s": first.time_s, "steps_to_target": first.step, "resolution_s": first.resolution_s}
    return row | _traffic(result, len(steps), first.time_s if first else None)


def _traffic(result: Result, steps: int, until_s: float | None) -> dict[str, Any]:
    """Bytes and their price; nothing where no link was measured."""
    totals = result.link_bytes
    if not totals:
        return {}
    wan = wan_only(totals)
    row: dict[str, Any] = {"wan_bytes": sum(wan.values()), "egress_usd": prices.egress_usd(wan)}
    row["lan_bytes"] = max(0, sum(size for link, size in totals.items() if is_uplink(link)) - row["wan_bytes"])
    row["exchanged"] = sum(wan.values()) > SMALL_BYTES * len(wan) * steps or _exchanged(result)
    if until_s is not None:
        row["wan_bytes_to_target"] = sum(result.link_bytes_until(until_s, list(wan)).values())
    return row


def _exchanged(result: Result) -> bool:
    """Whether some role has sent one of another region more than the mark that ends a segment; true where not known."""
    events = result.events
    if "messages" not in events:
        return True
    sent = events[events["event"] == "sent"]
    across = sent["node"].map(region_of) != sent["peer"].map(region_of)
    return not across.any() or is_exchange(sent[across])


def is_exchange(sent: pd.DataFrame) -> bool:
    """Whether one of these sums of messages is more than the mark that ends a segment; a run that stops has none."""
    return bool(((sent["messages"] > 1) | (sent["nbytes"] > MARK_BYTES)).any())


def reached_by_any(frame: pd.DataFrame) -> bool:
    """Whether some system and seed reached the target."""
    return bool(frame["time_to_target_s"].notna().any())


def wan_only(link_bytes: Mapping[str, int]) -> dict[str, int]:
    """The links between regions."""
    return {link: total for link, total in link_bytes.items() if is_wan(link)}


def is_uplink(link: str) -> bool:
    """Whether a link is a host's way out, which each of its messages crosses once, on to the LAN or the WAN."""
    return "/" in link.partition(">")[0]


def last_value(evaluations: pd.DataFrame, model: str, metric: str) -> float:
    """The last value of a model's metric."""
    if metric not in evaluations:
        return np.nan
    values = evaluations.loc[evaluations["model"] == model, metric]
    return float(values.iloc[-1]) if len(values) else np.nan


def relate(frame: pd.DataFrame, by: Sequence[str] = ("seed",)) -> pd.DataFrame:
    """Fill `compression` and the speedups: each row against the baseline's with the same `by`."""
    per_step = frame["wan_bytes"].astype("float64") / frame["steps"].where(frame["steps"] > 0)
    if "exchanged" in frame:
        per_step = per_step.where(frame["exchanged"].ne(False))
    times = frame.assign(wan_per_step=per_step)
    return relate_to(frame, BASELINE, by).assign(
        compression=ratio(times, "wan_per_step", BASELINE, by),
        step_speedup=ratio(times, "mean_step_s", BASELINE, by),
        speedup_to_accuracy=ratio(times, "time_to_accuracy_s", BASELINE, by),
        accuracy_resolution=_open(times, "time_to_accuracy_s", "accuracy_resolution_s", BASELINE, by),
        accuracy_vs_baseline=frame["final_accuracy"] - of_system(frame, "final_accuracy", BASELINE, by),
    )


def relate_to(frame: pd.DataFrame, over: str, by: Sequence[str] = ("seed",)) -> pd.DataFrame:
    """Fill `speedup_over_<over>` and its resolution: each row against that system's with the same `by`."""
    metric, resolution = speedup_metric(over), _open(frame, "time_to_target_s", "resolution_s", over, by)
    return frame.assign(**{metric: ratio(frame, "time_to_target_s", over, by), resolution_column(metric): resolution})


def _open(frame: pd.DataFrame, time: str, resolution: str, over: str, by: Sequence[str]) -> np.ndarray:
    """By what part a ratio of two such times may be off: half of each one's resolution against it."""
    own = frame.assign(own=frame[resolution] / frame[time] / 2)
    return own["own"].to_numpy() + of_system(own, "own", over, by)


def speedup_metric(over: str) -> str:
    """The column that holds the speedup over a system."""
    return "speedup_vs_baseline" if over == BASELINE else f"speedup_over_{over}"


def is_ratio(metric: str) -> bool:
    """Whether a metric is a ratio to another system's, paired by seed."""
    return metric in RATIOS or metric.startswith("speedup_over_")


def reference(metric: str) -> str:
    """The system that a ratio is to."""
    return metric.removeprefix("speedup_over_") if metric.startswith("speedup_over_") else BASELINE


def resolution_column(metric: str) -> str:
    """The column with the part by which a speedup to a target may be off; "" for other ratios."""
    if metric.startswith("speedup_over_"):
        return metric.replace("speedup_over_", "resolution_over_", 1)
    return {"speedup_vs_baseline": "speedup_resolution", "speedup_to_accuracy": "accuracy_resolution"}.get(metric, "")


def ratio(frame: pd.DataFrame, metric: str, over: str, by: Sequence[str] = ("seed",)) -> np.ndarray:
    """`metric` of system `over`, in the row with the same `by`, / each row's own; NaN where either is missing or 0."""
    above, below = of_system(frame, metric, over, by), frame[metric].to_numpy(dtype="float64", na_value=np.nan)
    return np.divide(above, below, out=np.full(len(frame), np.nan), where=(above > 0) & (below > 0))


def of_system(frame: pd.DataFrame, metric: str, system: str, by: Sequence[str] = ("seed",)) -> np.ndarray:
    """For each row, `metric` of `system` in the row with the same `by`; NaN where there is none.

    What is over is set against what is over alone: a run that was stopped has the numbers of a part (see `counted`).
    """
    keys = list(by)
    over = frame["status"].isin(OVER).to_numpy() if "status" in frame else True
    values = frame[[*keys, metric]].assign(over=over)
    others = values[frame["system"] == system].sort_values("over", ascending=False, kind="stable").drop_duplicates(keys)
    both = values.merge(others, on=keys, how="left", suffixes=("", "_of"))
    alike = ~both["over"] | both["over_of"].eq(True)
    return both[f"{metric}_of"].where(alike).to_numpy(dtype="float64", na_value=np.nan)


def _interval(group: pd.DataFrame, metric: str) -> tuple[float, float, float]:
    """Mean, and both ends of the interval, of a metric over the seeds."""
    values = group[metric].to_numpy(dtype="float64", na_value=np.nan)
    if not is_ratio(metric) or not (values > 0).all():
        mean, half = values.mean(), half_width(values)
        return mean, mean - half, mean + half
    if group["system"].eq(reference(metric)).all() and (values == 1.0).all():  # to itself, by any clock
        return 1.0, np.nan, np.nan
    column = resolution_column(metric)
    return of_ratios(values, float(np.nan_to_num(group[column].mean())) if column in group else 0.0)


def counted(frame: pd.DataFrame, by: Sequence[str] = ("system",)) -> pd.DataFrame:
    """The rows of a summary that a mean is taken of: those that are over; where none is, those that have a step.

    A seed that was stopped, or failed for the machine's sake, has not missed its target, and its bytes and its loss are
    those of a part. One that diverged counts: without it the mean would be of the lucky. All rows of a frame that does
    not say.
    """
    if not {"status", "steps"} <= set(frame):
        return frame
    over, begun = frame["status"].isin(OVER), frame["steps"] > 0
    some = (over & begun).groupby([frame[name] for name in by], dropna=False).transform("any")
    return frame[(over & some) | (begun & ~some)]


def aggregate(frame: pd.DataFrame, by: Sequence[str] = ("system",), metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """Mean and 95 % t-interval over the seeds of each system that are `counted`.

    Returns
    -------
    One row per system in order of first appearance: the `by` columns, `seeds`, `reached` and `reached_accuracy` (how
    many of them reached the target, the target accuracy), `silent` (how many have exchanged nothing yet), and for each
    of `metrics` its mean, `<metric>_low` and `<metric>_high`. Ratios are paired by seed: their mean is the geometric
    one, their interval that of their logarithms, and a speedup's is wider by `speedup_resolution`. The interval is
    empty for one seed. A metric that a seed lacks is empty: leaving out the seeds that never reached the target would
    make the rest look faster than they are.
    """
    rows = []
    for key, group in counted(frame, by).groupby(list(by), sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(by, key, strict=True))
        row["seeds"] = len(group)
        row |= {name: int(group[metric].notna().sum()) for name, metric in REACHED.items()}
        row["silent"] = int(group["exchanged"].eq(False).sum()) if "exchanged" in group else 0
        for metric in metrics:
            row |= dict(zip((metric, f"{metric}_low", f"{metric}_high"), _interval(group, metric), strict=True))
        rows.append(row)
    columns = [*by, "seeds", *REACHED, "silent", *(f"{m}{end}" for m in metrics for end in ("", "_low", "_high"))]
    return pd.DataFrame(rows, columns=columns)
