"""Compilation, its cache, and the threads."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import testbed
from testbed.codecs.kernels import compiled, ternary, vectors
from testbed.codecs.kernels.threads import CHUNK, in_chunks

LIMIT_S = 900  # compiling takes a minute and a half of one core, and the machine may be busy
ENCODE = """
import hashlib, torch
from testbed.codecs import Key, Ternary
from testbed.layout import Layout
codec = Ternary(Layout.of([("w.weight", (9999,)), ("last.weight", (1,))]))
x = torch.sin(torch.arange(10000.0))
print(hashlib.sha256(b"".join(b.tobytes() for b in codec.encode(x, Key(1, 2, 3)))).hexdigest())
"""


def test_kernels_are_compiled_once_and_for_declared_types_only() -> None:
    compiled.warm_up()
    assert ternary.unpack_chunk.signatures
    with pytest.raises(TypeError, match="No matching definition"):
        ternary.unpack_chunk(np.zeros(1, np.float32), np.zeros(5, np.float32), np.float32(1))


@pytest.mark.full
@pytest.mark.slow
def test_processes_that_compile_at_once_share_a_sound_cache(tmp_path: Path) -> None:
    """Three cold processes on one empty cache, then a warm one: the same bytes from all."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(testbed.__file__).parents[1])}
    command = [sys.executable, "-c", ENCODE]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S).stdout)
    assert len(set(outputs)) == 1
    assert len(outputs[0].strip()) == 64
    assert not list(tmp_path.rglob("*.tmp.*"))


def test_chunks_cover_the_range_in_order() -> None:
    for size in (0, 1, CHUNK, CHUNK + 1, 5 * CHUNK - 1):
        pieces = in_chunks(lambda start, stop: (start, stop), size)
        assert sum(stop - start for start, stop in pieces) == size
        assert all(a[1] == b[0] for a, b in pairwise(pieces))


def test_a_failing_chunk_fails_the_call() -> None:
    def fail(start: int, stop: int) -> None:
        raise ValueError(f"chunk {start}")

    with pytest.raises(ValueError, match="chunk 0"):
        in_chunks(fail, 3 * CHUNK)


def _count_in_child(queue: multiprocessing.Queue[int]) -> None:
    queue.put(sum(in_chunks(lambda start, stop: stop - start, 3 * CHUNK)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_threads_of_its_own() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        in_chunks(lambda start, stop: None, 3 * CHUNK)  # the parent's pool is running
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_count_in_child, args=(queue,))
        child.start()
        assert queue.get(timeout=20) == 3 * CHUNK
        child.join(20)
        assert child.exitcode == 0
    finally:
        torch.set_num_threads(threads)


def test_kernels_run_in_several_threads_at_once() -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).numpy()
    expected = vectors.moments_chunk(x)
    results: list[tuple[float, float, int]] = []
    workers = [threading.Thread(target=lambda: results.append(vectors.moments_chunk(x))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [expected] * 8


def test_a_cache_of_other_sources_is_thrown_away(tmp_path: Path) -> None:
    """Kernels use each other's parts, which numba's own cache does not notice."""
    old, other = tmp_path / "kernels.pack-1.nbi", tmp_path / "notes.txt"
    old.touch()
    other.touch()
    compiled._discard_stale(tmp_path)
    assert not old.exists() and other.exists()
    old.touch()
    compiled._discard_stale(tmp_path)
    assert old.exists()
    (tmp_path / "kernels.sha256").write_text("other sources")
    compiled._discard_stale(tmp_path)
    assert not old.exists()
