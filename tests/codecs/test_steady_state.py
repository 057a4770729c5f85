"""After a first message a codec makes no memory that grows with the vector, and messages in flight stay as they are."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from testbed.codecs import (
    CODECS,
    DGC,
    QSGD,
    Adaptive,
    BlockThresholdTernary,
    ErrorFeedback,
    Half,
    Key,
    LevelSum,
    Remembering,
    Sparse,
    SparseMultiples,
    Ternary,
    Thresholded,
    ThresholdTernary,
    TopK,
    Uniform,
    remembering,
)
from testbed.codecs.buffers import BufferPool
from testbed.codecs.memory import adder
from testbed.layout import Layout

LAYOUT = Layout.of(
    [
        ("conv.weight", (64, 64, 5, 5)),
        ("conv.bias", (64,)),
        ("fc1.weight", (1000, 2100)),
        ("fc1.bias", (1000,)),
        ("fc2.weight", (40, 1000)),
        ("fc2.bias", (40,)),
    ]
)
SMALL = Layout.of([("conv.weight", (64, 3, 5, 5)), ("conv.bias", (64,)), ("fc.weight", (40, 500)), ("fc.bias", (40,))])
MOST = 0.02  # of the vector's bytes; what is counted is Python's own, and arrays of a number a layer
OTHERS: dict[str, Callable[[Layout], Any]] = {
    "ternary, float biases": lambda layout: Ternary(layout, clip=None, layerwise=False),
    "threshold ternary, blockwise": BlockThresholdTernary,
    "threshold ternary with feedback": lambda layout: ErrorFeedback(ThresholdTernary(layout)),
    "half with feedback": lambda layout: ErrorFeedback(Half(layout)),
    "uniform with feedback, float biases": lambda layout: ErrorFeedback(
        Uniform(layout, bits=3, rounding="random", chosen=lambda layer: not layer.bias)
    ),
    "sparse": Sparse,
    "top-k of float16": lambda layout: TopK(layout, 0.1, "float16"),
    "top-k of signs with feedback": lambda layout: ErrorFeedback(TopK(layout, 0.1, "ternary", dense_biases=True)),
    "thresholded with feedback": lambda layout: ErrorFeedback(Thresholded(layout, 1.5)),
    "thresholded signs with feedback": lambda layout: ErrorFeedback(Thresholded(layout, 1.5, limit=1)),
    "thresholded multiples": lambda layout: Thresholded(layout, 0.1, limit=255),
    "adaptive with feedback": lambda layout: ErrorFeedback(Adaptive(layout)),
    "DGC": lambda layout: DGC(layout, 4, sparsity=0.95, momentum=0.9, warmup_epochs=0, epoch_steps=1),
    "QSGD in Elias codes": lambda layout: QSGD(layout, norm="euclidean", coding="elias"),
    "sparse multiples": lambda layout: SparseMultiples(layout, 0.25, 1020),
}
EVERY = {**CODECS, **OTHERS}
WITHOUT_KERNELS = {"chunked top-k 1.6 %"}  # operations of torch and numpy, which make results anew


class _Use:
    """The most bytes that arrays and Python took at once beyond those before, and all bytes of new tensors."""

    arrays = tensors = 0


@contextmanager
def measured() -> Iterator[_Use]:
    """The memory that is made meanwhile."""
    use = _Use()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            yield use
            use.arrays = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    use.tensors = sum(max(event.self_cpu_memory_usage, 0) for event in profiled.events())


@cache
def vector_of(layout: Layout, step: int) -> torch.Tensor:
    return torch.randn(layout.size, generator=torch.Generator().manual_seed(step))


def message(codec: Remembering, memory: Any, step: int) -> list[np.ndarray]:
    return codec.encode(vector_of(codec.layout, step), Key(0, 0, step), memory)


def test_new_arrays_and_tensors_are_noticed() -> None:
    with measured() as use:
        np.empty(1_000_000, np.uint8)
    assert use.arrays >= 1_000_000
    x = torch.ones(1000)
    with measured() as use:
        x.view(-1)[:10].add_(1)
        torch.add(x, x, out=x)
    assert use.tensors < 100
    with measured() as use:
        x.abs()
    assert use.tensors >= 4000


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in WITHOUT_KERNELS])
def test_a_further_message_makes_no_memory(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    codec, out, total = remembering(EVERY[name](LAYOUT)), torch.empty(LAYOUT.size), torch.zeros(LAYOUT.size)
    memory, add = codec.start(), adder(codec)
    for step in range(3):
        vector_of(LAYOUT, step)
        with measured() as use:
            buffers = message(codec, memory, step)
            codec.decode(buffers, out)
            add(buffers, total)
            del buffers
    assert use.arrays < MOST * out.nbytes
    assert use.tensors < MOST * out.nbytes


def test_sums_of_levels_make_no_memory() -> None:
    ternary = Ternary(LAYOUT)
    sums, out = LevelSum(ternary, 2), torch.empty(LAYOUT.size)
    for step in range(3):
        vectors = [vector_of(LAYOUT, 2 * step), vector_of(LAYOUT, 2 * step + 1)]
        with measured() as use:
            limits = [ternary.limits(vector) for vector in vectors]
            scales = np.maximum(limits[0].scales, limits[1].scales)
            pairs = enumerate(zip(vectors, limits, strict=True))
            messages = [ternary.encode(vector, Key(0, i, step), scales, limit) for i, (vector, limit) in pairs]
            sums.decode(sums.encode(sums.sum(messages)), out)
            del messages
    assert use.arrays < MOST * out.nbytes
    assert use.tensors < MOST * out.nbytes


@pytest.mark.parametrize("name", EVERY)
def test_a_message_in_flight_stays_as_it_is(name: str) -> None:
    """Also one of another sender, and what a message was decoded to."""
    codec = remembering(EVERY[name](SMALL))
    memories = [codec.start(), codec.start()]
    held: list[tuple[list[np.ndarray], list[bytes], torch.Tensor, torch.Tensor]] = []
    for step in range(4):
        buffers = message(codec, memories[step % 2], step)
        decoded = codec.decode(buffers)
        assert not any(np.shares_memory(decoded.numpy(), buffer) for buffer in buffers)
        held.append((buffers, [buffer.tobytes() for buffer in buffers], decoded, decoded.clone()))
        del buffers, decoded
        if step == 1:
            del held[0]  # its memory may be used again, that of the other not
    for buffers, sent, decoded, first in held:
        assert [buffer.tobytes() for buffer in buffers] == sent
        assert torch.equal(decoded, first)


@pytest.mark.parametrize("name", EVERY)
def test_a_copied_codec_codes_the_same_in_memory_of_its_own(name: str) -> None:
    codec = remembering(EVERY[name](SMALL))
    buffers = message(codec, codec.start(), 0)
    copied = copy.deepcopy(codec)
    assert all(not value._free for value in vars(copied).values() if isinstance(value, BufferPool))
    again = message(copied, copied.start(), 0)
    assert [buffer.tobytes() for buffer in again] == [buffer.tobytes() for buffer in buffers]
    assert not any(np.shares_memory(a, b) for a in again for b in buffers)
