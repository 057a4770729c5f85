"""Memory for messages that is used again once nobody holds the message any more.

A fresh array of megabytes costs a page fault for each 4 KiB written, as long as coding them takes; a small one lies in
memory that the process has anyway. A message may be in flight for any time, though, so a codec cannot know when to
write to its memory again: the array itself says so, by ceasing to exist.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Allocate = Callable[[int, Any], np.ndarray]  # (count, dtype) to an array: `np.empty` or a pool's `take`

SMALL = 1 << 16  # bytes up to which a fresh array, of memory that the process has, is the quicker one
_SLACK = 4096  # bytes: of smaller arrays it does not matter how much larger their storage is


class BufferPool(threading.local):
    """Gives arrays whose memory comes back when the last view of them is gone.

    It keeps as much memory as was ever in use at once, and up to twice that where sizes differ. Each thread that takes
    arrays has memory of its own; an array may be dropped in any thread. A copied pool begins with nothing.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()

    def take(self, count: int, dtype: Any = np.uint8) -> np.ndarray:
        """An array [count] of `dtype`, its values undefined; slices and views of it hold its memory as it does."""
        dtype = np.dtype(dtype)
        nbytes = count * dtype.itemsize
        if nbytes <= SMALL:
            return np.empty(count, dtype)
        storage = self._storage(nbytes)
        # Over a memoryview, so that views refer to this array, not past it to the storage; then its end is theirs.
        array = np.frombuffer(storage.data, np.uint8, nbytes)
        weakref.finalize(array, self._free.append, storage).atexit = False
        return array.view(dtype)

    def take_like(self, vector: torch.Tensor) -> torch.Tensor:
        """A vector of undefined values, float32 where `vector` is; beyond the CPU torch has a pool of its own."""
        if vector.device.type != "cpu":
            return torch.empty_like(vector, dtype=torch.float32)
        return torch.from_numpy(self.take(vector.numel(), np.float32))

    def _storage(self, nbytes: int) -> np.ndarray:
        """The smallest free storage that fits; where none does, a new one in place of the largest that is too small.

        One that is much too large does not fit: a few bytes would keep an array of megabytes from the next message.
        """
        sizes = [storage.nbytes for storage in self._free]  # another thread may append meanwhile: places stay right
        fitting = [place for place, size in enumerate(sizes) if nbytes <= size <= 2 * nbytes + _SLACK]
        if fitting:
            return self._free.pop(min(fitting, key=sizes.__getitem__))
        smaller = [place for place, size in enumerate(sizes) if size < nbytes]
        if smaller:
            self._free.pop(max(smaller, key=sizes.__getitem__))
        return np.empty(nbytes + nbytes // 8, np.uint8)  # messages change in size: room for a little more
