"""Memory for messages that is used again once nobody holds the message any more.

A fresh array of megabytes costs a page fault for each 4 KiB written, as long as coding them takes. A message may be
in flight for any time, though, so a codec cannot know when to write to its memory again: the array itself says so, by
ceasing to exist.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np


class BufferPool:
    """Gives arrays whose memory comes back when the last view of them is gone.

    It keeps as much memory as was ever in use at once. Not for two threads at once, but an array may be dropped in
    any thread.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def take(self, count: int, dtype: Any = np.uint8) -> np.ndarray:
        """An array [count] of `dtype`, its values undefined; slices and views of it hold its memory as it does."""
        dtype = np.dtype(dtype)
        nbytes = count * dtype.itemsize
        storage = self._storage(nbytes)
        # Over a memoryview, so that views refer to this array, not past it to the storage; then its end is theirs.
        array = np.frombuffer(memoryview(storage), np.uint8, nbytes) if nbytes else np.empty(0, np.uint8)
        weakref.finalize(array, self._free.append, storage).atexit = False
        return array.view(dtype)

    def _storage(self, nbytes: int) -> np.ndarray:
        """The smallest free storage that has room; where none has, a new one in place of the largest free."""
        sizes = [storage.nbytes for storage in self._free]  # another thread may append meanwhile: places stay right
        fitting = [place for place, size in enumerate(sizes) if size >= nbytes]
        if fitting:
            return self._free.pop(min(fitting, key=sizes.__getitem__))
        if sizes:
            self._free.pop(sizes.index(max(sizes)))
        return np.empty(nbytes + nbytes // 8, np.uint8)  # messages change in size: room for a little more
