"""The papers' numbers beside a run's own: what each quantity of `papers.toml` was here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import pandas as pd

from testbed.record.reader import Result, Run
from testbed.report import traffic
from testbed.report.looks import look
from testbed.report.papers import OPTIONS, Figure, Quantity, citation, fitting
from testbed.report.summary import BASELINE, aggregate, ratio, section
from testbed.report.wording import NOT_REACHED, conditions, duration, is_missing, percent, share, size, times

NOT_MEASURED = "not measured"
HEADS = ["quantity", "paper", "here"]
SET_BESIDE = "Set beside, not tuned to: hardware, links, data order and mostly length differ."
PROCESSED = 200  # batches: ISGQ, tables 1 and 2


@dataclass(frozen=True)
class Here:
    """A run's own numbers; each method takes a paper's figure and gives NaN where the run has none."""

    run: Run
    frame: pd.DataFrame

    def speedup(self, figure: Figure) -> float:
        return self._over("time_to_target_s", figure)

    def throughput(self, figure: Figure) -> float:
        return self._over("mean_step_s", figure)

    def sooner(self, figure: Figure) -> float:
        return self._mean("time_to_target_s", figure.versus) - self._mean("time_to_target_s", figure.system)

    def accuracy(self, figure: Figure) -> float:
        if figure.time_s is None:
            return self._mean("final_accuracy", figure.system)
        own = [result for result in self.run.results if result.system == figure.system]
        return float(np.mean([_accuracy_at(result, figure.time_s) for result in own]))

    def accuracy_gap(self, figure: Figure) -> float:
        return self._mean("final_accuracy", figure.system) - self._mean("final_accuracy", figure.versus)

    def processing(self, figure: Figure) -> float:
        return PROCESSED * (self._mean("mean_compute_s", figure.system) + self._mean("mean_codec_s", figure.system))

    def coding_share(self, figure: Figure) -> float:
        return self._mean("mean_codec_s", figure.system) / self._mean("mean_step_s", figure.system)

    def compression(self, figure: Figure) -> float:
        from testbed.workloads.workload import parameter_count_of

        sent = self._message.get(figure.system)
        if sent is None or is_missing(sent):
            return float("nan")
        return 4 * parameter_count_of(self.run.info.experiment) / sent

    def sent_gbyte(self, figure: Figure) -> float:
        return self._sent.get(figure.system, float("nan")) / 1e9

    def nothing(self, figure: Figure) -> float:
        return float("nan")

    def ended_s(self, system: str) -> float:
        """When the last step of a system ended."""
        return self._mean("time_s", system)

    def _mean(self, metric: str, system: str) -> float:
        return float(aggregate(self.frame[self.frame["system"] == system], metrics=[metric])[metric].iloc[0])

    def _over(self, metric: str, figure: Figure) -> float:
        found = self.frame.assign(over=ratio(self.frame, metric, figure.versus))
        return float(aggregate(found[found["system"] == figure.system], metrics=["over"])["over"].iloc[0])

    @cached_property
    def _message(self) -> dict[str, float]:
        """Bytes of a worker's messages a step."""
        return dict(traffic.traffic(self.run)["worker up"])

    @cached_property
    def _sent(self) -> dict[str, float]:
        return traffic.sent_by_workers(self.run)


def _accuracy_at(result: Result, time_s: float) -> float:
    """The last accuracy tested up to then; NaN where the run ended before."""
    if not len(result.steps) or result.steps["time_s"].max() < time_s:
        return float("nan")
    tests = result.evaluations[result.evaluations["time_s"] <= time_s]
    models = set(tests["model"])
    accuracies = tests.loc[tests["model"] == ("quantized" if "quantized" in models else "full"), "accuracy"]
    return float(accuracies.iloc[-1]) if len(accuracies) else float("nan")


@dataclass(frozen=True)
class Row:
    """How a quantity is told: its words, how a number is written, what measures it, what it says without one."""

    words: str
    write: Callable[[float], str]
    measure: Callable[[Here, Figure], float]
    missing: str = NOT_MEASURED
    of_baseline: bool = False  # a total that means little without its share of the baseline's


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.2f} points".replace("-", "−")


def _gbyte(gbyte: float) -> str:
    return size(1e9 * gbyte)


ROWS: dict[Quantity, Row] = {
    "speedup": Row("speedup of {system} over {versus}", times, Here.speedup, NOT_REACHED),
    "throughput": Row("throughput of {system} over {versus}", times, Here.throughput),
    "sooner": Row("time that {system} is at the target before {versus}", duration, Here.sooner, NOT_REACHED),
    "accuracy": Row("accuracy of {system}", percent, Here.accuracy),
    "accuracy-top5": Row("top-5 accuracy of {system}", percent, Here.nothing),
    "accuracy-gap": Row("accuracy of {system} above {versus}", _points, Here.accuracy_gap),
    "compression": Row("compression gain of a worker's message, {system}", times, Here.compression),
    "sent-gbyte": Row("what all workers send, {system}", _gbyte, Here.sent_gbyte, of_baseline=True),
    "processing": Row(
        f"time to compute and code {PROCESSED} batches, {{system}}", duration, Here.processing, of_baseline=True
    ),
    "coding-share": Row("share of the time spent coding, {system}", share, Here.coding_share),
}


def paper_rows(run: Run, frame: pd.DataFrame) -> list[list[str]]:
    """What the papers report for this experiment, model, point and these systems, beside what was measured.

    Returns
    -------
    A row for each number: the quantity, the paper's, the one here ("not measured", "not reached" where there is
    none), and where the paper's stands and under which conditions.
    """
    here, systems = Here(run, frame), set(frame["system"])
    fit = fitting(run.info)
    return [
        [_words(figure), stated(figure, fit), _measured(here, figure), f"{citation(figure)} ({figure.conditions})"]
        for figure in fit
        if {figure.system, figure.versus or figure.system} <= systems
    ]


def _words(figure: Figure) -> str:
    """The quantity; of its point what the run's conditions do not say."""
    words = ROWS[figure.quantity].words.format(system=look(figure.system).label, versus=look(figure.versus).label)
    options = {key.removeprefix(OPTIONS): value for key, value in figure.point.items() if key.startswith(OPTIONS)}
    tied = [f"{key} {value:g}" for key, value in options.items()]
    tied += [] if figure.time_s is None else [f"after {figure.time_s / 3600:g} h"]
    return ", ".join([words, *tied])


def stated(figure: Figure, fit: Sequence[Figure]) -> str:
    """The paper's number; a total with its share of the baseline's, if that is among the figures that fit, too."""
    row = ROWS[figure.quantity]
    if figure.low is not None:
        return f"{row.write(figure.low)} to {row.write(figure.value)}"
    same = (figure.where, figure.source, figure.quantity, BASELINE)
    base = [one.value for one in fit if (one.where, one.source, one.quantity, one.system) == same]
    return row.write(figure.value) + (_share(figure, figure.value, base[0]) if row.of_baseline and base else "")


def _measured(here: Here, figure: Figure) -> str:
    row = ROWS[figure.quantity]
    value = row.measure(here, figure)
    if is_missing(value):
        ended = "" if figure.time_s is None else f": ended after {duration(here.ended_s(figure.system))}"
        return row.missing + ended
    part = ""
    if row.of_baseline and BASELINE in set(here.frame["system"]):
        part = _share(figure, value, row.measure(here, _of_baseline(figure)))
    return row.write(value) + part + (" (stand-in data)" if here.run.info.data.stand_in else "")


def _of_baseline(figure: Figure) -> Figure:
    return msgspec.structs.replace(figure, system=BASELINE)


def _share(figure: Figure, value: float, base: float) -> str:
    if figure.system == BASELINE or is_missing(base):
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
    training, topology = section(run.info, "training"), section(run.info, "topology")
    parts = [f"{topology.get('kind', 'tree')} topology", conditions(run)]
    parts += [f"{training['steps']:,} steps"] if "steps" in training else []
    return f"{here}: {' · '.join(parts)}. {SET_BESIDE}"
