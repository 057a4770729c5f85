"""What can be said of a run in sentences: its conditions, what came of it, what must be known before believing it."""

from __future__ import annotations

import shlex
from typing import Any

import pandas as pd

from testbed.record.info import DONE, FidelityInfo, MetricInfo, RunInfo, converted
from testbed.record.reader import Run
from testbed.report.looks import look
from testbed.report.numbers import progress, why
from testbed.report.numbers.asked import Target, data_name, experiment_of, flat, is_modelled, model_name, timing_only
from testbed.report.numbers.disturbed import never_met
from testbed.report.numbers.reached import LEAST
from testbed.report.numbers.summary import BASELINE, FINAL_STEPS, aggregate, counted, relate_to, speedup_metric
from testbed.report.numbers.wording import NO_EXCHANGE, duration, is_missing, percent, times
from testbed.workloads import Data

LATE_MS = 1.0  # of the delay line's 99th percentile; beyond it a run's report says so
LATE = "sent one frame in a hundred more than"
RAISE = "; raise training.steps (make: STEPS)"


def title(run: Run) -> str:
    """The run in one line: model, target's name, profile."""
    where = f" on {run.info.profile}" if run.info.profile else ""
    return f"{run.info.target}{where}"


def command(info: RunInfo) -> str:
    """What started the run, as a shell takes it; "" where that was no command, but a notebook or a prompt."""
    if not info.command:
        return ""
    return shlex.join(["python" if info.command[0].endswith(".py") else "testbed", *info.command])


def conditions(run: Run) -> str:
    """What the numbers hold for: fabric, dilation, compute model, hosts, data, target."""
    info, asked, target = run.info, experiment_of(run.info), Target.of(run.info)
    regions, workers = asked.topology.regions, asked.topology.workers_per_region
    batch, tcp = asked.training.batch_size, asked.network
    parts = [
        f"{info.fabric} fabric" if info.fabric else "",
        f"delay by {info.delay_mechanism}" if info.delay_mechanism and not is_modelled(info) else "",
        f"time dilation {info.dilation:g}",
        f"compute: {info.compute}" if info.compute else "",
        f"{asked.compute.gpus} GPUs a worker over {asked.compute.gpu_link}" if asked.compute.gpus > 1 else "",
        "timing only: nothing was computed" if timing_only(info) else "",
        f"TCP window {tcp.tcp_window_kb:g} kB" if tcp.tcp_window_kb else "",
        "TCP slow start" if tcp.slow_start else "",
        f"faults: {', '.join(str(fault.get('kind')) for fault in asked.faults)}" if asked.faults else "",
        f"{len(regions)} × {workers} workers" if regions and workers else "",
        model_name(info),
        *([] if timing_only(info) else [data_name(info), _shards(asked.data)]),
        f"batch {batch}" if batch else "",
        *(f"target {words}" + (f" ({judged(info)})" if words.startswith("loss") else "") for words in target.in_words),
    ]
    return " · ".join(part for part in parts if part)


def _shards(data: Data) -> str:
    """How the data is divided, where regions have not all of the same kind."""
    return "" if data.alpha is None else f"{data.split} shards, alpha {data.alpha:g}"


def judged(info: RunInfo) -> str:
    """What losses are told by: tests of the reported model every so many steps, or a mean of the workers' losses."""
    every = tested_every(info)
    return f"tested every {every} steps" if every else f"mean of {Target.of(info).window} steps"


def tested_every(info: RunInfo) -> int:
    """Steps between two tests that judge the target; 0 where none do: a record from before there was such a key."""
    return int(dict(flat(info.experiment)).get("run.probe_steps") or 0)


def caveats(run: Run, frame: pd.DataFrame) -> list[str]:
    """What a reader must know before believing a number, most important first."""
    said = []
    trained = not timing_only(run.info)
    if run.info.data.stand_in and trained:
        note = f" ({run.info.data.note})" if run.info.data.note else ""
        name = data_name(run.info).removeprefix("stand-in for ")
        said.append(f"STAND-IN DATA: generated data in the place of {name}{note}; scores on it say nothing.")
    said += [
        f"{row.system} seed {row.seed} ended with the trace, after {row.steps:,} steps."
        for row in frame.loc[frame["status"] == "ended"].itertuples()
    ]
    if not_all := progress.of_run(run.folder, run.info.systems, run.info.seeds):
        said.append(not_all)
    ends = frame.loc[~frame["status"].isin(DONE) & (frame["steps"] > 0)]
    said += [
        f"{row.system} seed {row.seed} is {row.status}: {row.steps:,} steps recorded." for row in ends.itertuples()
    ]
    said += never_met(run)
    if trained and counted(frame)["steps"].between(1, FINAL_STEPS - 1).any():
        said.append(f"Fewer than {FINAL_STEPS} steps: the final loss is the mean of all of them.")
    said += met_at_once(frame) + few_tests(run, frame)
    if len(frame) and BASELINE not in set(frame["system"]):
        said.append("No baseline in this run: speedup and compression have nothing to be measured against.")
    return [*said, *late_frames(run), *run.info.notes]


def met_at_once(frame: pd.DataFrame) -> list[str]:
    """That the model as it began is at the target, where it is; else nothing."""
    if not (frame["time_to_target_s"] == 0).any():
        return []
    return ["The untrained model is at the target already: times to it say nothing. Ask for a harder one."]


def few_tests(run: Run, frame: pd.DataFrame) -> list[str]:
    """That a target which was not reached may have been, in steps of which too few tests tell; else nothing."""
    every = tested_every(run.info)
    asked = every and Target.of(run.info).stated and frame["time_to_target_s"].isna().any()
    longest = int(frame["steps"].max()) if asked else 0
    if not asked or longest >= 2 * LEAST * every:
        return []
    after = min((LEAST - 1) * every, longest) // 2  # a mean stands for the middle of its tests
    return [
        f"The target is judged by the mean of {LEAST} tests, {every} steps apart: too few for so short a run, "
        f"whose last {after} steps are not judged. A lower run.probe_steps tells more."
    ]


def late_frames(run: Run) -> list[str]:
    """That the delay line was late, if it was, and what that does to a step; nothing else."""
    late_ms = run.info.delay_report.get("lateness_p99_ms")
    if not isinstance(late_ms, float) or late_ms <= LATE_MS or any(LATE in note for note in run.info.notes):
        return []
    late_s = late_ms / 1e3 / (run.info.dilation or 1.0)
    parts = []
    for it in why.of_systems(run):
        messages = sum(bool(piece.peer) for piece in it.last)
        share = percent(messages * late_s / it.step_s)
        parts.append(f"{look(it.system).label} up to {share} ({messages} messages one after the other)")
    done = f", of a step's time, {'; '.join(parts)}" if parts else ""
    return [
        f"The delay line {LATE} {late_ms:.1f} ms late: this machine was busy. Each message that a step waits for may "
        f"have come so much later{done}."
    ]


def verdict(run: Run, frame: pd.DataFrame) -> str:
    """Which system reached the target first, or where nothing was computed has the shortest step, in one sentence.

    It says, too, over whom its lead is not significant: where the 95 % interval of the seeds' ratios holds 1.
    """
    if timing_only(run.info) and frame["mean_step_s"].notna().any():
        return _shortest_step(frame)
    target = Target.of(run.info)
    if not target.stated:
        return ""
    together = aggregate(frame).sort_values("time_to_target_s", kind="stable")
    if not len(together):
        return ""
    first = together.iloc[0]
    if is_missing(first["time_to_target_s"]):
        done, some = frame["status"].eq("finished").all(), frame["time_to_target_s"].notna().any()
        whom = " with every seed" if some else ""
        return f"No system reached {target}{whom} in {frame['steps'].max():,} steps" + (RAISE if done else "")
    how = "first, in" if len(together) > 1 else "in"
    sentence = f"{look(first['system']).label} reaches {target} {how} {duration(first['time_to_target_s'])}"
    speedup = first["speedup_vs_baseline"]
    if first["system"] != BASELINE and not is_missing(speedup):
        sentence += f": {times(speedup)} sooner than {look(BASELINE).label.lower()}"
    return sentence + _no_lead(frame, first["system"])


def _no_lead(frame: pd.DataFrame, first: str) -> str:
    """Over whom the lead of the first one is not significant; nothing with one seed, which has no interval."""
    metric = speedup_metric(first)
    ratios = aggregate(relate_to(frame, first), metrics=[metric])
    near = ratios[(ratios["system"] != first) & (ratios[f"{metric}_high"] >= 1)].sort_values(metric, ascending=False)
    names = [look(name).label for name in near["system"]]
    if len(names) > 2:
        names = [names[0], f"{len(names) - 1} more"]
    return f"; its lead over {' and '.join(names)} is not significant" if names else ""


def _shortest_step(frame: pd.DataFrame) -> str:
    first = aggregate(frame).sort_values("mean_step_s", kind="stable").iloc[0]
    sentence = f"A step takes {look(first['system']).label} the least time, {duration(first['mean_step_s'])}"
    if first["system"] == BASELINE or is_missing(first["step_speedup"]):
        return sentence
    return f"{sentence}: {times(first['step_speedup'])} less than {look(BASELINE).label.lower()}"


def fidelity(info: RunInfo) -> str:
    """What is known of an emulated network beside the gate: the newest `testbed fidelity` for profile and kernel."""
    if not info.delay_mechanism or is_modelled(info):
        return ""
    known = converted(info.fidelity, FidelityInfo)
    if known is None or not known.figures:
        return f"not measured on this kernel (testbed fidelity {info.profile})"
    within = f"all {known.figures:,} figures within their bounds"
    beyond = f"{known.missed} of {known.figures:,} figures beyond their bounds"
    return f"{beyond if known.missed else within}, measured {known.date[:10]} ({known.path})"


def headlines(run: Run, frame: pd.DataFrame) -> list[str]:
    """One sentence per system against the baseline: time to target, accuracy, bytes; measured, whatever it is."""
    together = {record["system"]: record for record in aggregate(frame).to_dict("records")}
    base = together.pop(BASELINE, None)
    if base is None:
        return []
    target = Target.of(run.info)
    metric = run.info.metric
    return [f"{look(name).label}: {_verdict(record, base, target, metric)}." for name, record in together.items()]


def _verdict(record: dict[str, Any], base: dict[str, Any], target: Target, metric: MetricInfo) -> str:
    parts = [_speed(record, base, target)] if target.stated else [_step(record, base)]
    gap = record["final_accuracy"] - base["final_accuracy"]
    if metric.name != "accuracy" and not is_missing(record["final_metric"] - base["final_metric"]):
        parts.append(f"{metric.label} {record['final_metric']:.3f} against {base['final_metric']:.3f}")
    elif not is_missing(gap):
        accuracies = f"{percent(record['final_accuracy'])} against {percent(base['final_accuracy'])}"
        unlike = record["steps"] != base["steps"]
        after = f" after {record['steps']:,.0f} and {base['steps']:,.0f} steps" if unlike else ""
        parts.append(f"accuracy {accuracies} ({100 * gap:+.1f} points)".replace("-", "−") + after)
    if record["silent"]:
        parts.append(f"{NO_EXCHANGE} between regions")
    elif not is_missing(record["compression"]):
        parts.append(f"{_ratio(record['compression'], 'fewer', 'more')} WAN bytes per step")
    return "; ".join(parts) or "nothing to compare was measured"


def _step(record: dict[str, Any], base: dict[str, Any]) -> str:
    mine, theirs = record["mean_step_s"], base["mean_step_s"]
    if is_missing(record["step_speedup"]):
        return "no step was recorded"
    return f"{_ratio(record['step_speedup'], 'less', 'more')} time a step, {duration(mine)} against {duration(theirs)}"


def _speed(record: dict[str, Any], base: dict[str, Any], target: Target) -> str:
    speedup, mine, theirs = record["speedup_vs_baseline"], record["time_to_target_s"], base["time_to_target_s"]
    if is_missing(mine):
        than = "nor did baseline" if is_missing(theirs) else f"baseline did in {duration(theirs)}"
        by = "" if not record["reached"] else f" with {record['seeds'] - record['reached']} of {record['seeds']} seeds"
        return f"did not reach {target}{by} in {record['steps']:,.0f} steps ({than})"
    if is_missing(speedup) and is_missing(theirs):
        return f"reaches {target} in {duration(mine)}; baseline did not reach it, so there is no speedup"
    if is_missing(speedup):  # a seed whose baseline was stopped, or two times of 0
        against = f"{duration(mine)}, baseline in {duration(theirs)}"
        return f"reaches {target} in {against}; there is no speedup, as not every seed has one"
    low, high = record["speedup_vs_baseline_low"], record["speedup_vs_baseline_high"]
    low, high = (low, high) if speedup >= 1 else (1 / high, 1 / low)  # as the figure is told
    interval = "" if is_missing(low) else f" (95 % interval {times(low)} to {times(high)})"
    against = f"{duration(mine)} against {duration(theirs)}"
    return f"reaches {target} {_ratio(speedup, 'sooner', 'later')} than baseline{interval}, {against}"


def _ratio(value: float, above: str, below: str) -> str:
    return f"{times(value)} {above}" if value >= 1 else f"{times(1 / value)} {below}"
