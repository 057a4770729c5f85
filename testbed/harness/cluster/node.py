"""What happens on a node: see whether it can take part, do the errand in a folder of its own, answer with the files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import ray

from testbed.errors import Interrupted
from testbed.fabrics.cluster import fitness
from testbed.fabrics.registry import FABRICS
from testbed.harness.cluster import archive
from testbed.harness.cluster.board import Told
from testbed.harness.lock import Held, held
from testbed.harness.pool import Errand
from testbed.report.live import telling

TELL_S = 0.5  # between two words on how far an errand is
FULL_BYTES = 1 << 20  # free: less, and what failed did so for lack of room
LOCKED_S = 60.0  # a process that had the folder may take that long to notice that its node is dead


@dataclass(frozen=True)
class Task:
    """An errand as it travels.

    Parameters
    ----------
    number : by which the driver knows it
    errand : with the experiment as nodes understand it
    fabric : on which it is to be done
    wanted : of any machine that does it
    storage : its folder below the one that all nodes see; "" for none
    """

    number: int
    errand: Errand
    fabric: str
    wanted: fitness.Facts
    storage: str


class Answer(msgspec.Struct, frozen=True):
    """What became of a task on the node of id `node_id` and address `node`.

    `unfit` says why the node cannot do it, else the errand's folder comes packed. `error` is the line of what the
    errand failed with, "" where it was done; `exit_code` that error's.
    """

    node_id: str
    node: str
    unfit: str = ""
    error: str = ""
    exit_code: int = 0
    packed: bytes = b""


def do(task: Task, packed: bytes, board: Any) -> Answer:
    """Do an errand whose folder held what is `packed`, and tell `board` how far it is. A Ray task."""
    node_id, node = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    place = Path(task.storage) if task.storage else None
    if place is not None and not place.parents[2].is_dir():
        return Answer(node_id, node, f"it does not see --storage {place.parents[2]}; mount it there")
    if why := fitness.unfit(task.wanted, task.errand.experiment, place and place.parents[2]):
        return Answer(node_id, node, why)
    if why := FABRICS.find(task.fabric).cannot_run_here():
        return Answer(node_id, node, f"the {task.fabric} fabric cannot run there: {why}")
    with _workplace(place, task.errand.folder) as folder:
        if packed and not folder.exists():
            archive.unpack(packed, folder)
        with telling(_teller(task, node, board)):
            failure = task.errand.attempt(folder)
        if isinstance(failure, Interrupted):
            raise KeyboardInterrupt  # Ray is told that it was cancelled
        if failure is not None and shutil.disk_usage(folder.parents[1]).free < FULL_BYTES:
            return Answer(node_id, node, f"its disk is full ({folder.parents[1]}); make room there")
        # Paths are those of the driver, to whom this folder means nothing.
        error = str(failure or "").replace(str(folder.parents[1]), str(task.errand.folder.parents[1]))
        code = failure.exit_code if failure else 0
        return Answer(node_id, node, "", error, code, archive.pack(folder) if folder.is_dir() else b"")


@contextmanager
def _workplace(place: Path | None, like: Path) -> Iterator[Path]:
    """The folder to work in, called as `like` and its parent are: in the storage, or for this time alone."""
    if place is None:
        with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
            yield Path(scratch) / like.parent.name / like.name
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = place.with_name(f".{place.name}.lock")
    lock.mkdir(exist_ok=True)
    until_s = monotonic() + LOCKED_S
    while True:
        try:
            with held(lock):
                yield place
            return
        except Held:
            if monotonic() > until_s:
                raise
        sleep(1.0)


def _teller(task: Task, node: str, board: Any) -> Any:
    """What tells the board of an errand's steps, now and then."""
    last_s = -TELL_S

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last_s
        if done == total or monotonic() - last_s >= TELL_S:
            last_s = monotonic()
            with suppress(ray.exceptions.RayError):  # nobody listens: the driver will see to that
                board.tell.remote(task.number, Told(what, done, total, node))

    tell(task.errand.label, 0, 0)
    os.environ.setdefault("MPLBACKEND", "Agg")
    return tell
