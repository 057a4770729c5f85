"""The numbers that the papers report, from `papers.toml`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Literal

import msgspec

from testbed.experiment.schema import Experiment
from testbed.record.info import RunInfo
from testbed.report.numbers.asked import experiment_of

TABLE = Path(__file__).with_name("papers.toml")
TIME = "time_s"
OPTIONS = "options."
Quantity = Literal[
    "speedup",  # times sooner at the target than `versus`
    "throughput",  # times the steps a second of `versus`
    "sooner",  # seconds at the target before `versus`
    "accuracy",  # of the result on the test set, a fraction
    "accuracy-top5",
    "accuracy-gap",  # what the accuracy is above that of `versus`
    "compression",  # 32 bits a parameter over the bits of a worker's message
    "sent-gbyte",  # what all workers send in a whole run, 10^9 bytes
    "processing",  # seconds in which a worker computes and codes 200 batches
    "coding-share",  # the share of a run's time that is spent coding
]
LEARNED: frozenset[Quantity] = frozenset(("speedup", "sooner", "accuracy", "accuracy-top5", "accuracy-gap"))
"""What depends on what there was to learn."""
Range = tuple[float, float]


class Number(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One number of a paper; the fields are those at the head of `papers.toml`.

    `point` maps keys of the experiment, dotted, or of the system's options ("options.threshold") to their values;
    `time_s` is how long into the run the number was taken, None for its end.
    """

    source: str
    where: str  # section, table or figure
    conditions: str
    workloads: tuple[str, ...]  # "MODEL on DATA": those it was measured with
    quantity: Quantity
    system: str
    value: float
    low: float | None = None  # the lower end of a range whose upper end is `value`
    experiment: str = ""
    versus: str = ""
    point: dict[str, float | str] = {}
    time_s: float | None = None


class Table(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`[[table]]` of `papers.toml`: numbers that share all but system, swept value and number."""

    source: str
    where: str
    conditions: str
    workloads: tuple[str, ...]
    quantity: Quantity
    values: dict[str, float | Range | dict[str, float]]
    experiment: str = ""
    versus: str = ""
    by: str = ""
    point: dict[str, float | str] = {}

    def numbers(self) -> Iterator[Number]:
        """Its numbers, system by system."""
        shared = {key: getattr(self, key) for key in Number.__struct_fields__ if hasattr(self, key)}
        for system, stated in self.values.items():
            if isinstance(stated, dict):
                for at, value in stated.items():
                    tied = {TIME: float(at)} if self.by == TIME else {"point": {**self.point, self.by: float(at)}}
                    yield Number(**{**shared, **tied}, system=system, value=value)
            else:
                low, value = stated if isinstance(stated, tuple) else (None, stated)
                yield Number(**shared, system=system, value=value, low=low)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    sources: dict[str, str]
    table: list[Table]


@cache
def _file() -> _File:
    return msgspec.toml.decode(TABLE.read_bytes(), type=_File)


@cache
def numbers() -> tuple[Number, ...]:
    """Every one, in the order of the file."""
    return tuple(number for table in _file().table for number in table.numbers())


def fitting(info: RunInfo) -> list[Number]:
    """The numbers that belong beside a run: those of its experiment, model, data and settings, of systems it may lack.

    A result of training on stand-in data has none: it is on other data than the paper's.
    """
    asked = experiment_of(info)
    workload = f"{asked.model.name} on {asked.data.dataset}"
    return [
        number
        for number in numbers()
        if number.experiment in ("", info.target)
        and workload in number.workloads
        and not (info.data.stand_in and number.quantity in LEARNED)
        and all(_holds(asked, number.system, key, value) for key, value in number.point.items())
    ]


def _holds(asked: Experiment, system: str, key: str, value: float | str) -> bool:
    """Whether a setting has that value; an option binds only systems that have it."""
    if key.startswith(OPTIONS):
        options = asked.systems.get(system) or {}
        found = options.get(key.removeprefix(OPTIONS), value)
    else:
        found = attrgetter(key)(asked)
    if isinstance(value, str):
        return bool(found == value)
    return isinstance(found, int | float) and math.isclose(found, value)


def citation(number: Number) -> str:
    """Paper and place in it."""
    return f"{_file().sources[number.source]}, {number.where}"
