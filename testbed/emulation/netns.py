"""Entering a network namespace for the length of a block."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import NetworkError

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def enter(target: int | str | Path) -> Iterator[None]:
    """Put the calling thread, and no other, into a network namespace; put it back at the end.

    Sockets made in the block belong to that namespace for good, and so do threads and processes started in it.

    Parameters
    ----------
    target : a process id (its namespace is entered), or the path of a namespace file

    Raises
    ------
    NetworkError
        There is no such namespace, or it may not be entered.
    """
    path = f"/proc/{target}/ns/net" if isinstance(target, int) else os.fspath(target)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NetworkError(f"no network namespace at {path}: {error.strerror}") from None
        try:
            _set(there, path)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _set(home, "the thread's own namespace")
    finally:
        os.close(home)


def _set(descriptor: int, name: str) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        raise NetworkError(f"cannot enter {name}: {reason}; it must lie in the run's own sandbox")
