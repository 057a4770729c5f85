"""Whether a node can take part: what the driver has, and why another machine cannot give the same bits."""

from __future__ import annotations

import platform
import shutil
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from testbed import plugins
from testbed.errors import TestbedError
from testbed.experiment.assembly import threads
from testbed.workloads.data import base as data
from testbed.workloads.fingerprint import fingerprint

SAME = ("torch", "numpy", "numba")  # what computes: another version may give other bits
ROOM_BYTES = 256 << 20  # free on a disk that is to hold records and checkpoints


class Facts(msgspec.Struct, frozen=True):
    """What has to be the same on every machine that takes part.

    `dataset` is the fingerprint of what is trained on; "" for timing-only runs, which open none. (Python and Ray are
    not here: Ray itself lets no node of another version join.)
    """

    machine: str
    packages: dict[str, str]
    dataset: str


def here(experiment: dict[str, Any]) -> Facts:
    """The facts of this machine for an experiment (plain data)."""
    return Facts(
        machine=platform.machine(),
        packages={name: metadata.version(name) for name in SAME},
        dataset=_dataset(_key(experiment))[0],
    )


def unfit(wanted: Facts, experiment: dict[str, Any], place: Path | None) -> str:
    """Why this machine cannot play the experiment with the driver's bits; "" where it can.

    Parameters
    ----------
    place : where it would write; None: its folder of temporary files
    """
    if (found := platform.machine()) != wanted.machine:
        return f"it is {found}, the driver {wanted.machine}; sums come out differently"
    for name, version in wanted.packages.items():
        if (has := metadata.version(name)) != version:
            return f"its {name} is {has}, the driver's {version}; install the same there"
    folder = place or Path(tempfile.gettempdir())
    if shutil.disk_usage(folder).free < ROOM_BYTES:
        return f"its disk is full ({folder}); make room there"
    try:
        dataset, note = _dataset(_key(experiment))
    except TestbedError as error:
        return str(error)
    if dataset != wanted.dataset:
        name = experiment["data"]["dataset"]
        return f"its data set '{name}' is not the driver's ({note}); put the same files into {data.root()} there"
    return ""


def _key(experiment: dict[str, Any]) -> bytes:
    """What of an experiment says which data it opens."""
    if experiment["compute"].get("math") == "none":
        return b""
    return msgspec.json.encode([experiment["data"], experiment.get("plugins", [])])


@lru_cache
def _dataset(key: bytes) -> tuple[str, str]:
    """The fingerprint of a data set as it is on this machine, and a line on what it is."""
    if not key:
        return "", ""
    table, names = msgspec.json.decode(key)
    plugins.load(names)
    opened = data.load(msgspec.convert(table, data.kind_of(table)), allow_download=False)
    with threads(1):
        return fingerprint(opened), opened.note
