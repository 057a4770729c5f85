"""The axes of a series: what `[sweep]` of an experiment file, several `[[sweep]]` and `--sweep` ask for.

An axis is a table of keys with a list of values each, equally long, which are taken together. Of several axes each
place is taken with each of the others.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from testbed.errors import InputError
from testbed.files import plain_name
from testbed.record.series import short

Axis = Mapping[str, Sequence[Any]]
MOST_RUNS = 1_000  # of a series, each of which is a folder


def read(sweep: Any, where: str) -> list[Axis]:
    """The axes of a file: of `[sweep]`, which is one, or of each `[[sweep]]`; an empty table is none.

    Raises
    ------
    InputError
        One is no table of equally long lists.
    """
    tables = sweep if isinstance(sweep, list) else [sweep]
    return [_checked(table, where) for table in tables if table != {}]


def _checked(axis: Any, where: str) -> Axis:
    if not isinstance(axis, dict):
        raise InputError(f"{where} is {axis!r}: it must be a table")
    for key, each in axis.items():
        if not isinstance(each, list) or not each:
            raise InputError(f"{where}.{key} is {each!r}: it must be a list of values")
    lengths = {key: len(each) for key, each in axis.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise InputError(f"{where}: its lists are taken together and must be equally long; {counts}")
    return axis


def without(axes: Iterable[Axis], keys: Iterable[str]) -> list[Axis]:
    """The axes but those with one of `keys`, which has been given a value of its own."""
    return [axis for axis in axes if not set(axis) & set(keys)]


def value(text: str) -> Any:
    """A value of the command line: TOML, or a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML
        return text


def parse(sweeps: Sequence[str]) -> list[Axis]:
    """The axes that `--sweep KEY=A,B` asks for, one each.

    Raises
    ------
    InputError
        One is not written so, or a key is swept twice.
    """
    axes: dict[str, list[Any]] = {}
    for sweep in sweeps:
        key, equals, text = (part.strip() for part in sweep.partition("="))
        if not equals or not key or not text.strip(", "):
            raise InputError(f"--sweep {sweep}: write it as key.path=a,b, e.g. training.batch_size=128,512")
        if key in axes:
            raise InputError(f"--sweep {key}: given twice; name all its values at once, {key}=a,b,c")
        axes[key] = _values(key, text)
    return [{key: values} for key, values in axes.items()]


def _values(key: str, text: str) -> list[Any]:
    """Values with commas between them; what is a list in TOML already is taken as one."""
    try:
        found = value(f"[{text}]")
    except RecursionError:
        raise InputError(f"--sweep {key}: nested too deeply") from None
    if isinstance(found, str):
        found = [value(word.strip()) for word in text.split(",") if word.strip()]
    return found[0] if len(found) == 1 and isinstance(found[0], list) and found[0] else found


def places(axes: Sequence[Axis], where: str) -> list[list[dict[str, Any]]]:
    """The runs of a series: for each, and each axis, the keys with their values there. One run where nothing is swept.

    Raises
    ------
    InputError
        There are too many.
    """
    lengths = [len(next(iter(axis.values()))) for axis in axes]
    if (count := prod(lengths)) > MOST_RUNS:
        raise InputError(f"{where}: {' x '.join(map(str, lengths))} are {count:,} runs; {MOST_RUNS:,} are possible")
    each = [
        [{key: axis[key][place] for key in axis} for place in range(n)] for axis, n in zip(axes, lengths, strict=True)
    ]
    return [list(found) for found in product(*each)]


Call = Callable[[str, Any], str]


def called(place: Sequence[Mapping[str, Any]], call: Call) -> list[dict[str, str]]:
    """What the values of a run's place are called; `call` names the value of a key."""
    return [{key: call(key, value) for key, value in axis.items()} for axis in place]


def label(names: Sequence[Mapping[str, str]]) -> str:
    """What a run is called, and its folder: "workers_per_region=2-batch_size=60"; "" where nothing is swept."""
    return "-".join(f"{short(key)}={name}" for axis in names for key, name in axis.items()).replace("/", "-")


def check_labels(labels: Iterable[str], where: str) -> None:
    """Raise InputError unless each run of a series can have a folder of its own, called by its label."""
    seen = set()
    for each in labels:
        if plain_name(each, f"{where}: the run") in seen:
            raise InputError(f"{where}: two of its runs would be called '{each}'; leave one of them out")
        seen.add(each)


def plain(value: Any) -> str:
    """What a value is called: a list by its members."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def word(text: str) -> str:
    """A text as part of a folder's name."""
    return re.sub(r"[^\w.+]+", "-", text.replace("*", "all"))
