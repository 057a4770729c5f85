"""The facts of a series: its runs in order, and the axes that they lie on.

`<series>/series.json` holds a `SeriesInfo`; each run of the series is a folder beside it, called by its label. An axis
is what was swept: a key with its values, or several keys whose values were taken together. Two axes make a grid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.files import plain_name
from testbed.record.info import read_facts

FILE_NAME = "series.json"


class SeriesInfo(msgspec.Struct, frozen=True):
    """What `series.json` holds: the runs in order, and what was asked for on the command line.

    Attributes
    ----------
    points : the runs' experiments by label
    places : by label, for each axis what the values of its keys are called; none in older records
    """

    target: str
    fabric: str
    device: str
    command: tuple[str, ...]
    notes: tuple[str, ...]
    points: dict[str, dict[str, Any]]
    tensorboard: bool = False
    places: dict[str, list[dict[str, str]]] = {}


@dataclass(frozen=True)
class Axis:
    """What was swept: `keys` that were taken together, and at each of its places what their values are called."""

    keys: tuple[str, ...]
    places: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """ "workers per region / batch size"."""
        return " / ".join(short(key).replace("_", " ") for key in self.keys)

    @property
    def values(self) -> list[str]:
        """What its places are called: "2 / 60"."""
        return [" / ".join(place) for place in self.places]

    @property
    def numbers(self) -> list[float] | None:
        """The values of its only key, where they are numbers."""
        try:
            return [float(value) for value in self.values] if len(self.keys) == 1 else None
        except ValueError:
            return None


@dataclass(frozen=True)
class Grid:
    """The axes of a series, or of any runs that are set side by side, and by label where on each of them a run is."""

    axes: tuple[Axis, ...]
    at: Mapping[str, tuple[int, ...]]

    def values(self, label: str) -> list[str]:
        """What a run's place on each axis is called."""
        return [axis.values[place] for axis, place in zip(self.axes, self.at[label], strict=True)]

    def called(self, label: str) -> str:
        """The run in one line: "2 / 60"."""
        return " / ".join(self.values(label))

    @property
    def name(self) -> str:
        """What the runs differ in, in one line."""
        return " / ".join(axis.name for axis in self.axes)

    @property
    def keys(self) -> list[str]:
        """All keys that were swept."""
        return [key for axis in self.axes for key in axis.keys]


def is_series(folder: Path) -> bool:
    """Whether `folder` holds a series rather than a run."""
    return (folder / FILE_NAME).is_file()


def read(folder: Path) -> SeriesInfo:
    """The series in `folder`.

    Raises
    ------
    InputError
        `series.json` is missing or damaged, a label in it is no name of a folder in this one, or its runs do not lie on
        the same axes.
    """
    path = folder / FILE_NAME
    stored = read_facts(path, SeriesInfo)
    for label in stored.points:
        plain_name(label, f"{path}: points:")
    axes = [[list(axis) for axis in place] for place in stored.places.values()]
    if any(each != axes[0] for each in axes):
        raise InputError(f"{path}: places: the runs do not lie on the same axes; put the file back as it was written")
    return stored


def labels(folders: Sequence[Path]) -> list[str]:
    """What runs are called side by side: by their folders, with as many of those above as tell them all apart."""
    depth, names = 1, [folder.name for folder in folders]
    while len(set(names)) < len(set(folders)):
        depth += 1
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
    return names


def grid(folders: Sequence[Path]) -> Grid:
    """The grid of runs: as their series says it, else by their names, "workers=2-batch=60", else one place a run.

    An axis on which they are all at the same place is left out, unless it is the only one.
    """
    named = labels(folders)
    parents = {folder.parent for folder in folders}
    places: Mapping[str, list[dict[str, str]]] = {}
    if len(parents) == 1 and is_series(series := parents.pop()):
        places = read(series).places
    if not set(named) <= set(places):
        parsed = {label: dict(_parsed(label)) for label in named}
        alike = all(found and list(found) == list(parsed[named[0]]) for found in parsed.values())
        places = {label: [found if alike else {"run": label}] for label, found in parsed.items()}
    every = [_axis([places[label][number] for label in named]) for number in range(len(places[named[0]]))]
    kept = [number for number, axis in enumerate(every) if len(axis.places) > 1] or [0]
    axes = tuple(every[number] for number in kept)
    at = {
        label: tuple(every[number].places.index(tuple(places[label][number].values())) for number in kept)
        for label in named
    }
    return Grid(axes, at)


def swept(folders: Sequence[Path]) -> list[str]:
    """The keys that a series sweeps whose runs these are; none where they are not all of one series."""
    parents = {folder.parent for folder in folders}
    return grid(folders).keys if len(parents) == 1 and is_series(parents.pop()) else []


def _axis(found: Sequence[Mapping[str, str]]) -> Axis:
    return Axis(tuple(found[0]), tuple(dict.fromkeys(tuple(each.values()) for each in found)))


def short(key: str) -> str:
    """A key as a label names it: its last part, a system's option behind the system's name."""
    return key.removeprefix("systems.") if key.startswith("systems.") else key.rpartition(".")[2]


def _parsed(label: str) -> list[tuple[str, str]]:
    """Keys and values of a label; values may hold a "-" (5e-06), and so may keys (isgq-mse.bits)."""
    return re.findall(r"(?:^|-)([a-z][^=]*)=(.*?)(?=-[a-z][^=]*=|$)", label)
