"""A host name of its own for what a thread starts in a block."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.errors import NetworkError

CLONE_NEWUTS = 0x04000000
LONGEST = 63  # bytes that Linux and DNS allow
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def called(name: str) -> Iterator[None]:
    """Let the calling thread, and no other, stand on a host called `name`; processes started in the block stay there.

    Programs tell each other where they are by `gethostname`, so hosts of one machine need a name each. One that is too
    long is cut.

    Raises
    ------
    NetworkError
        The kernel does not allow it: the process is in no sandbox.
    """
    home = os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _did(_libc.unshare(CLONE_NEWUTS), name)
        try:
            short = name.encode()[:LONGEST]
            _did(_libc.sethostname(short, len(short)), name)
            yield
        finally:
            _did(_libc.setns(home, CLONE_NEWUTS), name)
    finally:
        os.close(home)


def _did(status: int, name: str) -> None:
    if status:
        raise NetworkError(f"no host can be called {name}: {os.strerror(ctypes.get_errno())}; it needs a sandbox")
