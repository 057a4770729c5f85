"""A message's memory is used again once nobody holds it, and not before."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.buffers import BufferPool


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    array = pool.take(1000, np.float32)
    address = array.ctypes.data
    tensor = torch.from_numpy(array[10:20])
    view = array[5:].view(np.uint8).data
    del array
    assert pool.take(1000, np.float32).ctypes.data != address
    del tensor
    assert pool.take(1000, np.float32).ctypes.data != address
    del view
    again = [pool.take(1000, np.float32) for _ in range(3)]
    assert address in [each.ctypes.data for each in again]


MOST = 20_000


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, MOST), st.integers(0, 3)), max_size=60))
def test_arrays_in_use_never_share_memory(orders: list[tuple[int, int]]) -> None:
    pool = BufferPool()
    held: list[np.ndarray] = []
    for mark, (count, kept) in enumerate(orders):
        array = pool.take(count, np.uint8)
        assert array.shape == (count,)
        array[:] = mark
        held = [*held[-kept:], array] if kept else [array]
        assert all(np.unique(each).size <= 1 for each in held)
    assert sum(storage.nbytes for storage in pool._free) <= 2 * 5 * MOST * 9 / 8


def test_room_for_growth_does_not_pile_up() -> None:
    pool = BufferPool()
    for size in range(1, 100_000, 999):
        pool.take(size)
    assert len(pool._free) == 1


def test_a_few_bytes_do_not_keep_a_large_storage() -> None:
    pool = BufferPool()
    large = pool.take(1_000_000).ctypes.data
    small = pool.take(10)
    assert pool.take(1_000_000).ctypes.data == large
    assert small.ctypes.data != large


def test_threads_take_from_memory_of_their_own() -> None:
    pool = BufferPool()
    address = pool.take(100_000).ctypes.data
    box: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: box.append(pool.take(100_000)))
    thread.start()
    thread.join()
    assert box[0].ctypes.data != address
    assert pool.take(100_000).ctypes.data == address


def test_a_copy_begins_with_nothing() -> None:
    pool = BufferPool()
    pool.take(100_000)
    for copied in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        assert not copied._free and copied.take(10).size == 10


def test_another_thread_may_drop_the_last_view() -> None:
    pool = BufferPool()
    box = [pool.take(100)]
    address = box[0].ctypes.data
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert pool.take(100).ctypes.data == address
