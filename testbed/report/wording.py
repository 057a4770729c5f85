"""Numbers and conditions in words, the same in every table and picture."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from testbed.record.info import DONE, RunInfo
from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.summary import BASELINE, FINAL_STEPS, Target, aggregate, data_name, model_name, section

NONE = "–"
NOT_REACHED = "not reached"


def is_missing(value: object) -> bool:
    """Whether a cell is empty."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def number(value: float, digits: int = 3, most_decimals: int = 12) -> str:
    """Plain, with `digits` significant digits but whole numbers whole: 0.0123, 5.36, 12.4, 1,234."""
    if is_missing(value):
        return NONE
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    value = float(f"{value:.{digits}g}") if abs(value) < 10**digits else value  # 0.9996 is 1.00, not 1.000
    decimals = min(most_decimals, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{decimals}f}"


def times(value: float) -> str:
    """A ratio: 5.36×."""
    return NONE if is_missing(value) else f"{number(value, most_decimals=2)}×"


def percent(fraction: float) -> str:
    """A fraction as percent with one decimal: 47.2 %."""
    return NONE if is_missing(fraction) else f"{100 * fraction:.1f} %"


def share(fraction: float) -> str:
    """A part of a whole as percent, below one percent with two digits: 47.2 %, 0.058 %."""
    return f"{100 * fraction:.2g} %" if 0 <= fraction < 0.01 else percent(fraction)


def dollars(usd: float) -> str:
    """US dollars to the cent, or to three digits below one: $12.40, $0.0213."""
    if is_missing(usd):
        return NONE
    return f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${number(usd)}"


def size(size_bytes: float) -> str:
    """Bytes in decimal units: 1.23 GB."""
    if is_missing(size_bytes):
        return NONE
    scaled = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if scaled < 999.5 or unit == "TB":
            break
        scaled /= 1000
    return f"{scaled:.0f} B" if unit == "B" else f"{number(scaled)} {unit}"


def duration(time_s: float) -> str:
    """Seconds as one reads a clock: 0.82 s, 42.1 s, 6 min 05 s, 3 h 20 min."""
    if is_missing(time_s):
        return NONE
    if time_s < 99.95:
        return f"{number(time_s)} s"
    minutes, seconds = divmod(round(time_s), 60)
    if minutes < 100:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def clock(fabrics: Iterable[str]) -> str:
    """What the times are that were taken on these fabrics: "emulated time", "virtual time", or plain "time"."""
    kinds = {{"mininet": "emulated time", "virtual": "virtual time"}.get(fabric, "time") for fabric in fabrics}
    return kinds.pop() if len(kinds) == 1 else "time"


def title(run: Run) -> str:
    """The run in one line: model, target's name, profile."""
    where = f" on {run.info.profile}" if run.info.profile else ""
    return f"{run.info.target}{where}"


def conditions(run: Run) -> str:
    """What the numbers hold for: fabric, dilation, compute model, hosts, data, target."""
    info, target = run.info, Target.of(run.info)
    regions = info.topology.get("regions") or section(info, "topology").get("regions") or []
    workers = info.topology.get("workers_per_region") or section(info, "topology").get("workers_per_region")
    batch = section(info, "training").get("batch_size")
    tcp = section(info, "network")
    parts = [
        f"{info.fabric} fabric" if info.fabric else "",
        f"delay by {info.delay_mechanism}" if info.delay_mechanism and info.fabric != "virtual" else "",
        f"time dilation {info.dilation:g}",
        f"compute: {info.compute}" if info.compute else "",
        f"TCP window {tcp['tcp_window_kb']:g} kB" if tcp.get("tcp_window_kb") else "",
        "TCP slow start" if tcp.get("slow_start") else "",
        f"{len(regions)} × {workers} workers" if regions and workers else "",
        model_name(info),
        data_name(info),
        f"batch {batch}" if batch else "",
        *(
            f"target {words}" + (f" (mean of {target.window} steps)" if words.startswith("loss") else "")
            for words in target.in_words
        ),
    ]
    return " · ".join(part for part in parts if part)


def caveats(run: Run, frame: pd.DataFrame) -> list[str]:
    """What a reader must know before believing a number, most important first."""
    said = []
    if run.info.data.stand_in:
        note = f" ({run.info.data.note})" if run.info.data.note else ""
        name = data_name(run.info).removeprefix("stand-in for ")
        said.append(f"STAND-IN DATA: generated images in the place of {name}{note}; accuracies say nothing about it.")
    said += [
        f"{row.system} seed {row.seed} ended with the trace, after {row.steps:,} steps."
        for row in frame.loc[frame["status"] == "ended"].itertuples()
    ]
    ends = frame.loc[~frame["status"].isin(DONE)]
    said += [
        f"{row.system} seed {row.seed} is {row.status}: {row.steps:,} steps recorded." for row in ends.itertuples()
    ]
    short = frame.loc[frame["steps"].between(1, FINAL_STEPS - 1), "steps"]
    if len(short):
        said.append(f"Fewer than {FINAL_STEPS} steps: the final loss is the mean of all of them.")
    if len(frame) and BASELINE not in set(frame["system"]):
        said.append("No baseline in this run: speedup and compression have nothing to be measured against.")
    return said + run.info.notes


def verdict(run: Run, frame: pd.DataFrame) -> str:
    """Which system reached the target first, in one sentence."""
    target = Target.of(run.info)
    if not target.stated or not len(frame):
        return ""
    together = aggregate(frame).sort_values("time_to_target_s", kind="stable")
    first = together.iloc[0]
    if is_missing(first["time_to_target_s"]):
        return f"No system reached {target}"
    how = "first, in" if len(together) > 1 else "in"
    sentence = f"{look(first['system']).label} reaches {target} {how} {duration(first['time_to_target_s'])}"
    speedup = first["speedup_vs_baseline"]
    if first["system"] == BASELINE or is_missing(speedup):
        return sentence
    return f"{sentence}: {times(speedup)} sooner than {look(BASELINE).label.lower()}"


def fidelity(info: RunInfo) -> str:
    """What is known of the emulated network beside the gate: the newest `testbed fidelity` for profile and kernel."""
    if info.fabric != "mininet":
        return ""
    known = info.fidelity
    if not known:
        return f"not measured on this kernel (make fidelity PROFILE={info.profile})"
    within = f"all {known['figures']:,} figures within their bounds"
    beyond = f"{known['missed']} of {known['figures']:,} figures beyond their bounds"
    return f"{beyond if known['missed'] else within}, measured {known['date'][:10]} ({known['path']})"
