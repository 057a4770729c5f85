"""What faults cost a run: time lost, how much of it was useful, how soon the next step is done after each."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from testbed.record import lines
from testbed.record.events import StepDone
from testbed.record.info import DONE
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.asked import experiment_of
from testbed.report.numbers.wording import NONE, duration, is_missing, percent, size

HEADS = [
    "system",
    "lost to faults",
    "useful time",
    "next step after a fault",
    "undisturbed step",
    "longest stall",
    "samples lost",
    "left out",
    "to catch up",
    "farthest apart",
]

TERSE = (0, 1, 2, 3, 5, 6, 7)  # the columns that have room in a terminal
NOTE = (
    "Lost: the time beyond what as many steps take that no fault touches. Useful: the part of the run's time that "
    "they would have taken. Next step after a fault: mean time from its end until a step is done. Longest stall: of "
    "any worker between two of its steps. Samples lost: those of steps that a worker did not end. Left out: how "
    "often a server went on without one who was late; to catch up: bytes that told them what they had missed. "
    "Farthest apart: the largest distance of a region's copy from the mean of all, against the mean's norm."
)


@dataclass(frozen=True)
class Span:
    """A fault while it was in force; `end_s` is infinite where the run ended before it."""

    kind: str
    about: str
    begin_s: float
    end_s: float


def spans(result: Result) -> list[Span]:
    """The faults that a system met, in order of their beginning."""
    events = result.events
    if not len(events) or "fault" not in set(events["event"]):
        return []
    found: list[Span] = []
    open_: dict[int, dict[str, Any]] = {}
    for event in events[events["event"] == "fault"].sort_values("time_s", kind="stable").to_dict("records"):
        if event.get("over") is True:
            begun = open_.pop(event["fault"], event)  # the line of its beginning may be damaged
            found.append(Span(event["kind"], event["about"], begun["time_s"], event["time_s"]))
        else:
            open_[event["fault"]] = event
    found += [Span(event["kind"], event["about"], event["time_s"], inf) for event in open_.values()]
    return sorted(found, key=lambda span: span.begin_s)


def never_met(run: Run) -> list[str]:
    """Which of the experiment's faults systems were done before, one sentence a fault."""
    done = [result for result in run.results if result.status in DONE and len(result.steps)]
    met = [_numbers_met(result) for result in done]
    said = []
    for number, fault in enumerate(experiment_of(run.info).faults):
        missed = [result for result, numbers in zip(done, met, strict=True) if number not in numbers]
        if missed:
            systems = ", ".join(dict.fromkeys(look(result.system).label for result in missed))
            took = duration(max(float(result.steps["time_s"].max()) for result in missed))
            kind = str(fault.get("kind")) if isinstance(fault, dict) else "?"
            said.append(f"Fault {number} ({kind}) never came for {systems}: done after {took}.")
    return said


def disturbed(run: Run) -> pd.DataFrame:
    """What faults cost each system and seed; no row where a run met none.

    Returns
    -------
    Steps are those of `steps_done_s`. `step_s` is the mean time of those that no fault touches: that neither overlap
    one nor are the first done after it. `lost_s` is the run's time beyond `step_s` for each step, `useful` the part of
    the run's time that its steps would have taken without (steps a second, against those). `recovery_s` is the mean
    time from a fault's end to the next step's. `stall_s` is the longest time between two steps of one worker,
    `samples_lost` the part of all whose steps a worker did not end, `left_out` how often a server went on without
    somebody, `catch_up_bytes` what they were told when they were back, `divergence` the largest ||x_r - mean|| of a
    region's copy, against ||mean||.
    """
    rows = [
        {"system": result.system, "seed": result.seed, **_measure(result)} for result in run.results if spans(result)
    ]
    return pd.DataFrame(rows, columns=["system", "seed", "faults", *_MEASURES])


def _numbers_met(result: Result) -> set[float]:
    events = result.events
    return set(events.loc[events["event"] == "fault", "fault"]) if "fault" in events else set()


def _measure(result: Result) -> dict[str, float]:
    met, done_s = spans(result), steps_done_s(result)
    begun_s = np.concatenate([[0.0], done_s[:-1]])
    touched = np.zeros(len(done_s), dtype=bool)
    recoveries = []
    for span in met:
        touched |= (begun_s < span.end_s) & (done_s > span.begin_s)
        following = np.searchsorted(done_s, span.end_s, side="right")
        if following < len(done_s):
            touched[following] = True
            recoveries.append(done_s[following] - span.end_s)
    free = (done_s - begun_s)[~touched]
    step_s = float(free.mean()) if len(free) else np.nan
    needed_s, took_s = step_s * len(done_s), done_s[-1] if len(done_s) else np.nan
    return {
        "faults": len(met),
        "step_s": step_s,
        "lost_s": took_s - needed_s,
        "useful": needed_s / took_s,
        "recovery_s": float(np.mean(recoveries)) if recoveries else np.nan,
        "stall_s": stalls(result).max(),
        **_absences(result),
    }


def steps_done_s(result: Result) -> np.ndarray:
    """When so many steps were done, in seconds: as many of workers' steps as all of them together make in one.

    Where all take part in every step this is when the slowest has done it.
    """
    done = _workers_steps(result).sort_values("time_s", kind="stable")
    made = done["workers"].to_numpy().cumsum()
    if not len(made):
        return made.astype("float64")
    whole = int(result.steps["workers"].max())
    return done["time_s"].to_numpy()[np.searchsorted(made, np.arange(whole, made[-1] + 1, whole))]


def stalls(result: Result) -> pd.Series:
    """The longest time between two steps of each worker, or before its first, in seconds, by worker."""
    steps = _workers_steps(result).sort_values("time_s", kind="stable")
    longest = {node: np.diff(times, prepend=0.0).max() for node, times in steps.groupby("node", sort=False)["time_s"]}
    return pd.Series(longest, dtype="float64")


def _workers_steps(result: Result) -> pd.DataFrame:
    """Each step of each worker, or of those for whom one plays: when it was done."""
    found = [
        (done.node, done.time_s, done.workers)
        for line in lines.whole_lines(result.folder / lines.FILE_NAME)
        if line.startswith(lines.STEP_PREFIX) and isinstance(done := lines.decode(line), StepDone)
    ]
    return pd.DataFrame(found, columns=["node", "time_s", "workers"])


def _absences(result: Result) -> dict[str, float]:
    """Who was left out, and how far copies of the model were apart meanwhile."""
    events, workers = result.events, result.steps["workers"].to_numpy(dtype="float64")
    absent = events[events["event"] == "absent"]
    back = absent["back"].fillna(False).astype(bool) if "back" in absent and len(absent) else pd.Series(dtype=bool)
    apart = events[events["event"] == "diverged"]
    return {
        "samples_lost": 1 - float(workers.mean() / workers.max()) if len(workers) else np.nan,
        "left_out": float(len(absent) - back.sum()),
        "catch_up_bytes": float(absent["nbytes"].fillna(0).sum()) if "nbytes" in absent else 0.0,
        "divergence": float((apart["distance"] / apart["norm"]).max()) if len(apart) else np.nan,
    }


def rows(run: Run) -> list[list[str]]:
    """The table's cells, means over the seeds; no line where there was no fault."""
    frame = disturbed(run)
    lines = []
    for system, each in frame.groupby("system", sort=False):
        mean = each[list(_WRITTEN)].mean()
        cells = [NONE if is_missing(mean[name]) else write(mean[name]) for name, write in _WRITTEN.items()]
        lines.append([look(str(system)).label, *cells])
    return lines


def _times(count: float) -> str:
    return "never" if not count else "once" if count == 1 else f"{count:.3g} times"


_WRITTEN = {
    "lost_s": duration,
    "useful": percent,
    "recovery_s": duration,
    "step_s": duration,
    "stall_s": duration,
    "samples_lost": percent,
    "left_out": _times,
    "catch_up_bytes": size,
    "divergence": percent,
}
_MEASURES = ["step_s", "lost_s", *(name for name in _WRITTEN if name not in ("step_s", "lost_s"))]
