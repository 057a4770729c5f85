"""The columns of the result tables: which there are, when they are shown, how a cell over several seeds is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from testbed.record.info import DONE
from testbed.report.looks import look
from testbed.report.numbers.asked import spoken
from testbed.report.numbers.summary import (
    BASELINE,
    REACHED,
    SPENT,
    aggregate,
    counted,
    is_ratio,
    speedup_metric,
)
from testbed.report.numbers.wording import (
    NO_EXCHANGE,
    NONE,
    NOT_REACHED,
    clock,
    dollars,
    duration,
    is_missing,
    percent,
    size,
    times,
)

SPENT_HEADS = dict(zip(SPENT, ("computing", "codec", "on the LAN", "on the WAN", "waiting"), strict=True))

NOTHING = 1e-6  # an interval this small against its mean is a rounding error


@dataclass(frozen=True)
class Column:
    """A column: its head, the metric of the summary that it shows and how that is written."""

    head: str
    metric: str
    write: Callable[[Any], str]


def _loss(value: float) -> str:
    return NONE if is_missing(value) else f"{value:.3f}"


def _steps(value: float) -> str:
    return f"{value:,.0f}"


def result(frame: pd.DataFrame) -> list[Column]:
    """Steps, loss and accuracies of the models there are; of runs in which nothing was computed, the steps."""
    if all_timing_only(frame):
        return [Column("steps", "steps", _steps)]
    columns = [
        Column("steps", "steps", _steps),
        Column("final loss", "final_loss", _loss),
        *(Column(spoken(metric), "final_metric", _loss) for metric in _others(frame)),
        Column("accuracy", "final_accuracy", percent),
        Column("full precision", "accuracy_full", percent),
        Column("EMA", "accuracy_ema", percent),
    ]
    shown_if_any = {"accuracy_full": "accuracy_quantized", "accuracy_ema": "accuracy_ema"}
    if _others(frame):
        shown_if_any["final_accuracy"] = "final_accuracy"
    return [c for c in columns if c.metric not in shown_if_any or frame[shown_if_any[c.metric]].notna().any()]


def all_timing_only(frame: pd.DataFrame) -> bool:
    """Whether nothing was computed in any row."""
    return "timing_only" in frame and len(frame) > 0 and bool(frame["timing_only"].all())


def _others(frame: pd.DataFrame) -> list[str]:
    """The one main metric of all rows, where it is neither the accuracy nor the loss."""
    metrics = set(frame["metric"]) if "metric" in frame else set()  # a summary kept by an older testbed has none
    return list(metrics) if len(metrics) == 1 and not metrics & {"accuracy", "loss"} else []


def timing(frame: pd.DataFrame, over: Sequence[str] = (BASELINE,)) -> list[Column]:
    """How long it took, to each target, and how much sooner than each system of `over` the first of them came."""
    columns = [Column(clock(frame["fabric"]), "time_s", duration)]
    if (frame["target"] != "").any():
        columns.append(Column("time to target", "time_to_target_s", duration))
        columns += [Column(_over(system), speedup_metric(system), times) for system in over]
    else:
        columns += [Column("per step", "mean_step_s", duration), Column("step speedup", "step_speedup", times)]
    for metric in second_targets(frame):
        columns.append(Column(f"time to {metric}", "time_to_accuracy_s", duration))
        columns.append(Column("speedup to it", "speedup_to_accuracy", times))
    return columns


def second_targets(frame: pd.DataFrame) -> list[str]:
    """What is asked for beside the loss, accuracy or another metric; of runs that differ in it the first one's."""
    asked = frame["target"].str.extract(r"^loss [^,]*, (.+?) [≤≥]", expand=False).dropna().unique()
    return list(asked[:1])


def _over(system: str) -> str:
    return "speedup" if system == BASELINE else f"over {look(system).label}"


def traffic(frame: pd.DataFrame) -> list[Column]:
    """Bytes on the WAN, what they are against the baseline's, what they cost."""
    columns = [
        Column("WAN bytes", "wan_bytes", size),
        Column("to target", "wan_bytes_to_target", size),
        Column("compression", "compression", times),
        Column("LAN bytes", "lan_bytes", size),
        Column("egress", "egress_usd", dollars),
    ]
    return [c for c in columns if c.metric != "wan_bytes_to_target" or (frame["target"] != "").any()]


def spent(frame: pd.DataFrame) -> list[Column]:
    """Where a step's time went, as far as it was recorded; `mean_rest_s` is what is left (`with_rest`)."""
    columns = [Column("per step", "mean_step_s", duration)]
    columns += [Column(SPENT_HEADS[name], f"mean_{name}_s", duration) for name in recorded(frame)]
    return columns if "waiting" in recorded(frame) else [*columns, Column("rest", "mean_rest_s", duration)]


def recorded(frame: pd.DataFrame) -> list[str]:
    """The parts of `SPENT` that any row has."""
    return [name for name in SPENT if frame[f"mean_{name}_s"].notna().any()]


def with_rest(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `mean_rest_s`, a step's time that no recorded part accounts for."""
    parts = [f"mean_{name}_s" for name in recorded(frame)]
    return frame.assign(mean_rest_s=(frame["mean_step_s"] - frame[parts].sum(axis=1)).clip(lower=0.0))


def table(frame: pd.DataFrame, by: Sequence[str], columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: one row per system (or other key), over its seeds if there are several."""
    frame = counted(frame, by)
    together = aggregate(frame, by, [column.metric for column in columns])
    several = len(together) < len(frame)
    unfinished = frame[~frame["status"].isin(DONE)].set_index(list(by)).index
    cells = []
    for record in together.to_dict("records"):
        key = tuple(record[name] for name in by)
        names = [look(value).label if name == "system" else str(value) for name, value in zip(by, key, strict=True)]
        if (key if len(key) > 1 else key[0]) in unfinished:
            names[-1] += " (unfinished)"
        seeds = [str(record["seeds"])] if several else []
        cells.append([*names, *seeds, *(_cell(record, column) for column in columns)])
    return [*by, *(["seeds"] if several else []), *(column.head for column in columns)], cells


def _cell(record: dict[str, Any], column: Column) -> str:
    for reached, metric in REACHED.items():
        if column.metric == metric and record[reached] < record["seeds"]:
            return NOT_REACHED if not record[reached] else f"{NOT_REACHED} by {record['seeds'] - record[reached]}"
    if column.metric == "compression" and record["silent"]:
        return NO_EXCHANGE if record["silent"] == record["seeds"] else f"{NO_EXCHANGE} by {record['silent']}"
    text, ends = column.write(record[column.metric]), [record[f"{column.metric}_{end}"] for end in ("low", "high")]
    if is_ratio(column.metric):
        return between(text, *map(column.write, ends))
    half = ends[1] - record[column.metric]
    return f"{text} ± {column.write(half)}" if half > NOTHING * abs(record[column.metric]) else text


def between(text: str, low: str, high: str) -> str:
    """A ratio with the ends of its interval, which do not lie as far below it as above; alone where it has none."""
    return text if NONE in (low, high) or low == high else f"{text} ({low.rstrip('×')} to {high.rstrip('×')})"
