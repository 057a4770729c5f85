"""The papers' numbers beside a run's own: what each quantity of `papers.toml` was here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import pandas as pd

from testbed.errors import InputError
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers import traffic
from testbed.report.numbers.asked import experiment_of, reported, timing_only
from testbed.report.numbers.sentences import conditions
from testbed.report.numbers.summary import BASELINE, aggregate, last_value, ratio
from testbed.report.numbers.wording import NOT_REACHED, duration, is_missing, percent, share, size, times
from testbed.report.papers.stated import OPTIONS, Number, Quantity, citation, fitting

NOT_MEASURED = "not measured"
HEADS = ["quantity", "paper", "here"]
SET_BESIDE = "Set beside, not tuned to: hardware, links, data order and mostly length differ."
TOP5 = "top5_accuracy"  # as the data sets call it
PROCESSED = 200  # batches: ISGQ, tables 1 and 2


@dataclass(frozen=True)
class Here:
    """A run's own numbers; each method takes a paper's number and gives NaN where the run has none."""

    run: Run
    frame: pd.DataFrame

    def speedup(self, number: Number) -> float:
        return self._over("time_to_target_s", number)

    def throughput(self, number: Number) -> float:
        return self._over("mean_step_s", number)

    def sooner(self, number: Number) -> float:
        return self._mean("time_to_target_s", number.versus) - self._mean("time_to_target_s", number.system)

    def accuracy(self, number: Number) -> float:
        if number.time_s is None:
            return self._mean("final_accuracy", number.system)
        own = [result for result in self.run.results if result.system == number.system]
        return float(np.mean([_accuracy_at(result, number.time_s) for result in own]))

    def top5(self, number: Number) -> float:
        """The last one of the result, a mean over the seeds; NaN where the data set has none."""
        own = [result.tests for result in self.run.results if result.system == number.system]
        return (
            float(np.mean([last_value(each, reported(set(each["model"])), TOP5) for each in own]))
            if own
            else float("nan")
        )

    def accuracy_gap(self, number: Number) -> float:
        return self._mean("final_accuracy", number.system) - self._mean("final_accuracy", number.versus)

    def processing(self, number: Number) -> float:
        return PROCESSED * (self._mean("mean_compute_s", number.system) + self._mean("mean_codec_s", number.system))

    def coding_share(self, number: Number) -> float:
        return self._mean("mean_codec_s", number.system) / self._mean("mean_step_s", number.system)

    def compression(self, number: Number) -> float:
        from testbed.workloads.workload import parameter_count_of  # torch: only where it is asked for

        sent = self._message.get(number.system)
        if sent is None or is_missing(sent):
            return float("nan")
        try:
            return 4 * (self.run.info.parameters or parameter_count_of(self.run.info.experiment)) / sent
        except InputError:  # its data set came with a plug-in that is not here
            return float("nan")

    def sent_gbyte(self, number: Number) -> float:
        return self._sent.get(number.system, float("nan")) / 1e9

    def ended_s(self, system: str) -> float:
        """When the last step of a system ended."""
        return self._mean("time_s", system)

    def missing(self, number: Number) -> str:
        """What stands in the place of a number; nobody "did not reach" a target that all its systems have a time to."""
        times_s = [self._mean("time_to_target_s", name) for name in (number.system, number.versus) if name]
        return ROWS[number.quantity].missing if any(map(is_missing, times_s)) else NOT_MEASURED

    def _mean(self, metric: str, system: str) -> float:
        return _only(self.frame[self.frame["system"] == system], metric)

    def _over(self, metric: str, number: Number) -> float:
        over = f"speedup_over_{number.versus}"  # by whose name `aggregate` knows a ratio
        found = self.frame.assign(**{over: ratio(self.frame, metric, number.versus)})
        return _only(found[found["system"] == number.system], over)

    @cached_property
    def _message(self) -> dict[str, float]:
        """Bytes of a worker's messages a step."""
        return dict(traffic.traffic(self.run)["worker up"])

    @cached_property
    def _sent(self) -> dict[str, float]:
        return traffic.sent_by_workers(self.run)


def _only(frame: pd.DataFrame, metric: str) -> float:
    """The mean of the one system in a summary; NaN where none of its seeds has made a step."""
    found = aggregate(frame, metrics=[metric])[metric]
    return float(found.iloc[0]) if len(found) else float("nan")


def _accuracy_at(result: Result, time_s: float) -> float:
    """The last accuracy tested up to then; NaN where the run ended before."""
    if not len(result.steps) or result.steps["time_s"].max() < time_s:
        return float("nan")
    tests = result.tests[result.tests["time_s"] <= time_s]
    accuracies = tests.loc[tests["model"] == reported(set(tests["model"])), "accuracy"]
    return float(accuracies.iloc[-1]) if len(accuracies) else float("nan")


@dataclass(frozen=True)
class Row:
    """How a quantity is told: its words, how a number is written, what measures it, what it says without one."""

    words: str
    write: Callable[[float], str]
    measure: Callable[[Here, Number], float]
    missing: str = NOT_MEASURED
    of_training: bool = True  # what a timing-only run cannot have
    of_baseline: bool = False  # a total that means little without its share of the baseline's


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.2f} points".replace("-", "−")


def _gbyte(gbyte: float) -> str:
    return size(1e9 * gbyte)


ROWS: dict[Quantity, Row] = {
    "speedup": Row("speedup of {system} over {versus}", times, Here.speedup, NOT_REACHED),
    "throughput": Row("throughput of {system} over {versus}", times, Here.throughput, of_training=False),
    "sooner": Row("time that {system} is at the target before {versus}", duration, Here.sooner, NOT_REACHED),
    "accuracy": Row("accuracy of {system}", percent, Here.accuracy),
    "accuracy-top5": Row("top-5 accuracy of {system}", percent, Here.top5),
    "accuracy-gap": Row("accuracy of {system} above {versus}", _points, Here.accuracy_gap),
    "compression": Row("compression gain of a worker's message, {system}", times, Here.compression),
    "sent-gbyte": Row("what all workers send, {system}", _gbyte, Here.sent_gbyte, of_baseline=True),
    "processing": Row(
        f"time to compute and code {PROCESSED} batches, {{system}}", duration, Here.processing, of_baseline=True
    ),
    "coding-share": Row("share of the time spent coding, {system}", share, Here.coding_share),
}


def paper_rows(run: Run, frame: pd.DataFrame) -> list[list[str]]:
    """What the papers report for this experiment, model, data, point and these systems, beside what was measured.

    Returns
    -------
    A row for each number: the quantity, the paper's, the one here ("not measured", "not reached" where there is
    none), and where the paper's stands and under which conditions.
    """
    here, systems = Here(run, frame), set(frame["system"])
    trained = not timing_only(run.info)
    fit = [number for number in fitting(run.info) if trained or not ROWS[number.quantity].of_training]
    return [
        [_words(number), stated(number, fit), _measured(here, number), f"{citation(number)} ({number.conditions})"]
        for number in fit
        if {number.system, number.versus or number.system} <= systems
    ]


def _words(number: Number) -> str:
    """The quantity; of its point what the run's conditions do not say."""
    words = ROWS[number.quantity].words.format(system=look(number.system).label, versus=look(number.versus).label)
    options = {key.removeprefix(OPTIONS): value for key, value in number.point.items() if key.startswith(OPTIONS)}
    tied = [f"{key} {value}" if isinstance(value, str) else f"{key} {value:g}" for key, value in options.items()]
    tied += [] if number.time_s is None else [f"after {number.time_s / 3600:g} h"]
    return ", ".join([words, *tied])


def stated(number: Number, fit: Sequence[Number]) -> str:
    """The paper's number; a total with its share of the baseline's, if that is among those that fit, too."""
    row = ROWS[number.quantity]
    if number.low is not None:
        return f"{row.write(number.low)} to {row.write(number.value)}"
    same = (number.where, number.source, number.quantity, BASELINE)
    base = [one.value for one in fit if (one.where, one.source, one.quantity, one.system) == same]
    return row.write(number.value) + (_share(number, number.value, base[0]) if row.of_baseline and base else "")


def _measured(here: Here, number: Number) -> str:
    row = ROWS[number.quantity]
    value = row.measure(here, number)
    if is_missing(value):
        ended = "" if number.time_s is None else f": ended after {duration(here.ended_s(number.system))}"
        return here.missing(number) + ended
    part = ""
    if row.of_baseline and BASELINE in set(here.frame["system"]):
        part = _share(number, value, row.measure(here, _of_baseline(number)))
    return row.write(value) + part + (" (stand-in data)" if here.run.info.data.stand_in else "")


def _of_baseline(number: Number) -> Number:
    return msgspec.structs.replace(number, system=BASELINE)


def _share(number: Number, value: float, base: float) -> str:
    if number.system == BASELINE or is_missing(base):
        return ""
    return f" ({share(value / base)} of the baseline's)"


def by_source(rows: Iterable[list[str]]) -> dict[str, list[list[str]]]:
    """Rows by their last cell, without it: a table of their own for each table of a paper."""
    tables: dict[str, list[list[str]]] = {}
    for *cells, source in rows:
        tables.setdefault(source, []).append(cells)
    return tables


def setting(run: Run, here: str = "Here") -> str:
    """What the numbers here hold for, and how to read them; `here` says which run's they are."""
    asked = experiment_of(run.info)
    parts = [f"{asked.topology.kind} topology", conditions(run)]
    parts += [f"{asked.training.steps:,} steps"] if asked.training.steps else []
    return f"{here}: {' · '.join(parts)}. {SET_BESIDE}"
