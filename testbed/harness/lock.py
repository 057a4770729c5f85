"""Who plays a run: at most one command at a time, with all its processes.

The lock is the kernel's (`flock`) on a file in the run's folder, so that it is gone with the last process that holds
it, however that ends. The command that plays holds it from before it reads the record until its report is written; the
processes it starts for single systems and seeds hold it, too, since they outlive a command that was killed by a moment.
A command that only waits for another one inside a sandbox holds nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import InputError

FILE_NAME = "run.lock"


class Held(InputError):
    """Another process holds the run."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the run, or the series of runs, in `folder`, against every other command.

    Raises
    ------
    Held
        Another one plays it, or cleans up after it.
    InputError
        The folder is not there or cannot hold a lock.
    """
    with _opened(folder) as lock:
        _take(lock, fcntl.LOCK_EX, folder)
        _take(lock, fcntl.LOCK_SH, folder)  # with the processes that this one starts; no other gets it alone
        yield


@contextmanager
def held_too(folder: Path) -> Iterator[None]:
    """Hold it beside the process that started this one, and for as long as this one lives; raises as `held` does."""
    with _opened(folder) as lock:
        _take(lock, fcntl.LOCK_SH, folder)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    path = folder / FILE_NAME
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # no other program inherits it
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        yield lock
    finally:
        os.close(lock)


def _take(lock: int, how: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        how_to = "wait for its end, or stop it there with Ctrl-C"
        raise Held(f"{folder}: this run is still going on in another process; {how_to}") from None
    except OSError as error:
        raise InputError(f"{folder / FILE_NAME}: cannot be locked: {error.strerror}; keep results elsewhere") from None
