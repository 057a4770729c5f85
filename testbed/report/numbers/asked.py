"""What a run was asked to do, read from its record.

A record may be older than this version, or name a system, a key or a data set of a plug-in that is not here; it is
read all the same, as far as it is understood.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pandas as pd
from msgspec.structs import force_setattr

from testbed.errors import InputError
from testbed.experiment.schema import Experiment, Topology
from testbed.experiment.schema import Target as Asked
from testbed.record.info import MODELLED_NETWORK, MetricInfo, RunInfo
from testbed.workloads import Data, Model
from testbed.workloads.config import Training

DEFAULT_WINDOW = 10

S = TypeVar("S", bound=msgspec.Struct)


def experiment_of(info: RunInfo) -> Experiment:
    """The experiment of a run.

    What the record does not say is "", 0, empty or the default; keys and values that mean nothing here are passed
    over. Nothing but types is checked, and `systems` are plain options by name, so that a system need not be known.
    """
    stated = {**info.experiment, "topology": info.topology or info.experiment.get("topology")}
    if isinstance(stated.get("model"), str):  # records of the first versions name the model alone
        stated["model"] = {"name": stated["model"]}
    return _read(_unstated(), stated)


def _unstated() -> Experiment:
    """What a record that says nothing asks for."""
    topology = Topology(profile="", regions=[], server_region="", workers_per_region=0)
    training = Training(steps=0, batch_size=0)
    return Experiment(topology, training, {}, model=Model(""), data=_read(Data(), {"dataset": ""}))


def _read(default: S, stated: Mapping[str, Any]) -> S:
    """A copy of a struct with what `stated` has for its fields, each on its own; no `__post_init__` can object."""
    found = copy.copy(default)
    for field in msgspec.structs.fields(default):
        if field.encode_name not in stated:
            continue
        value = stated[field.encode_name]
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            if isinstance(value, dict):
                force_setattr(found, field.name, _read(getattr(default, field.name), value))
        else:
            with suppress(msgspec.ValidationError):
                force_setattr(found, field.name, msgspec.convert(value, field.type))
    return found


def flat(tree: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a record by their dotted keys, as they stand there, whether this version knows them or not."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{head}{key}.")
        else:
            yield head + key, value


def model_name(info: RunInfo) -> str:
    """The model of the experiment ("" where the record does not say)."""
    return experiment_of(info).model.name


def data_name(info: RunInfo) -> str:
    """The data set, marked when a generated stand-in took its place."""
    name = info.data.dataset or experiment_of(info).data.dataset
    return f"stand-in for {name}" if info.data.stand_in else name


def is_modelled(info: RunInfo) -> bool:
    """Whether the network was a model on a virtual clock, rather than links that can be probed."""
    return info.delay_mechanism == MODELLED_NETWORK


def timing_only(info: RunInfo) -> bool:
    """Whether nothing was computed in a run, so that it has times and bytes and no losses."""
    return experiment_of(info).compute.timing_only


@dataclass(frozen=True)
class Target:
    """What systems are timed to: a training loss (mean of `window` steps), a test accuracy, or both; or another metric.

    The loss, where there is one, is what "the target" means. `value` is of the test's `metric`, which is at its best
    when `better` ("higher" or "lower").
    """

    loss: float | None = None
    accuracy: float | None = None
    window: int = DEFAULT_WINDOW
    metric: str = ""
    value: float | None = None
    better: str = "higher"
    model: str = ""

    @classmethod
    def of(cls, info: RunInfo) -> Target:
        """The target in the experiment of a run; empty where it names none, and where nothing was trained."""
        if timing_only(info):
            return cls()
        asked = experiment_of(info).target
        return cls.asked(asked, info.target_metric or _unrecorded(asked.metric, info.metric))

    @classmethod
    def asked(cls, asked: Asked, metric: MetricInfo | None) -> Target:
        """The target of an experiment; `metric` is the one that it names, None for none, or where nothing is judged."""
        model = asked.model if isinstance(asked.model, str) else ""
        if isinstance(asked.metric, str) and isinstance(asked.value, float):
            better = metric.better if metric else "higher"
            return cls(asked.loss, asked.accuracy, asked.window, asked.metric, asked.value, better, model)
        return cls(asked.loss, asked.accuracy, asked.window, model=model)

    @property
    def stated(self) -> bool:
        """Whether there is one."""
        return self.loss is not None or self.accuracy is not None or self.value is not None

    @property
    def tests(self) -> bool:
        """Whether it is (also) of tests on test data."""
        return self.accuracy is not None or self.value is not None

    def __str__(self) -> str:
        return self.in_words[0] if self.stated else ""

    @property
    def in_words(self) -> tuple[str, ...]:
        """Each of its parts, the target itself first: "loss ≤ 1.7", "accuracy ≥ 45 %"."""
        words = [] if self.loss is None else [f"loss ≤ {self.loss:g}"]
        if self.accuracy is not None:
            words.append(f"accuracy ≥ {100 * self.accuracy:g} %")
        if self.value is not None:
            words.append(f"{spoken(self.metric)} {'≥' if self.better == 'higher' else '≤'} {self.value:g}")
        return tuple(words)

    def of_metric(self, metric: str) -> float | None:
        """What it asks of a metric of tests; None where it asks nothing of that one."""
        asked = self.value if metric == self.metric else None
        return self.accuracy if metric == "accuracy" and self.accuracy is not None else asked

    def missed_by(self, tests: pd.DataFrame) -> pd.Series | None:
        """By how much each of `tests` misses its accuracy or metric, 0 or less where it does not; None for neither."""
        if self.accuracy is not None:
            return self.accuracy - tests["accuracy"]
        if self.value is None or self.metric not in tests:
            return None
        gap = self.value - tests[self.metric]
        return gap if self.better == "higher" else -gap


def _unrecorded(name: object, main: MetricInfo) -> MetricInfo | None:
    """The metric that a target names, as far as a record that has no facts of it lets one know."""
    if name == main.name:
        return main
    return MetricInfo(name="loss", better="lower") if name == "loss" else None  # which every workload has


def reported(models: Collection[str], asked: str = "") -> str:
    """Which of a system's models it reports: the one asked for, where it has that; else its quantized one, if any."""
    return asked if asked in models else "quantized" if "quantized" in models else "full"


def spoken(metric: str) -> str:
    """A metric's name in words."""
    return metric.replace("_", " ")


def target_of(loss: float | None, accuracy: float | None) -> Target | None:
    """The target that a user names, None where none is.

    Raises
    ------
    InputError
        The loss is not above 0, or the accuracy no fraction above 0.
    """
    if loss is not None and not 0 < loss < math.inf:
        raise InputError(f"--loss {loss:g}: a target loss is a number above 0")
    if accuracy is not None and not 0 < accuracy <= 1:
        raise InputError(f"--accuracy {accuracy:g}: a target accuracy is a fraction above 0, at most 1, e.g. 0.45")
    return None if loss is None and accuracy is None else Target(loss, accuracy)
