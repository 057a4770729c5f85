"""Large layers in chunks, on as many threads as torch was given.

A chunk has a fixed size, so what is computed, and in which order partial sums are added, does not depend on the
number of threads. Kernels release the GIL; numba's own `parallel=True` is not used because its default threading
layer must not be entered from two threads at once, which several roles in one process would do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

CHUNK = 1_024_000  # elements; a multiple of every planar block (5 x 1024 and 8 x 1024), 4 MB of float32
THREADED_FROM = 2 * CHUNK  # elements; below this a hand-over to a thread costs about what it saves

Result = TypeVar("Result")
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="codec")
        return _pools[threads]


def _forget_pools() -> None:
    """A forked child inherits the pools but not their threads, and perhaps a held lock."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)


def in_chunks(task: Callable[[int, int], Result], size: int) -> list[Result]:
    """Call `task(start, stop)` for every chunk of `range(size)`; the results in the order of the chunks."""
    if 0 < size <= CHUNK:  # most layers, for which the lines below take as long as the task
        return [task(0, size)]
    starts = range(0, size, CHUNK)
    stops = [min(start + CHUNK, size) for start in starts]
    threads = min(torch.get_num_threads(), len(starts))
    if threads > 1 and size >= THREADED_FROM:
        return list(_pool(threads).map(task, starts, stops))
    return [task(start, stop) for start, stop in zip(starts, stops, strict=True)]
