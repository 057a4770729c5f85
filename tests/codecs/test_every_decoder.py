"""Mutated messages into every decoder: a typed error or a valid vector, and no more memory than the model's.

`FUZZ_MESSAGES=100000 pytest tests/codecs/test_every_decoder.py` is the long form.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from testbed.codecs import Float32, Key, LevelSum, Ternary, ThresholdTernary
from testbed.codecs.adaptive import Adaptive
from testbed.codecs.blockwise import BlockTernary, BlockThresholdTernary
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.dgc import DGC
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.half import Half
from testbed.codecs.lossless.entropy import EntropyCoded
from testbed.codecs.lossless.planes import coded_levels, coded_qsgd, coded_uniform
from testbed.codecs.memory import remembering
from testbed.codecs.onebit import OneBit
from testbed.codecs.qsgd import QSGD
from testbed.codecs.sparse import Sparse
from testbed.codecs.statistical import Statistical
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Uniform
from testbed.errors import CodecError
from testbed.layout import Layout

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "250"))
SHAPES = {"a.weight": (40, 30), "a.bias": (40,), "none.weight": (0, 4), "one.bias": (1,), "b.weight": (7, 11)}
LAYOUT = Layout.of([*SHAPES.items(), ("b.bias", (7,))])
MOST_BYTES = 2_000_000  # the vector is 5 kB; the rest is Python and numba's own
CODECS: dict[str, Callable[[], Any]] = {
    "float32": lambda: Float32(LAYOUT),
    "half": lambda: Half(LAYOUT),
    "ternary": lambda: Ternary(LAYOUT),
    "threshold ternary": lambda: ThresholdTernary(LAYOUT),
    "block ternary": lambda: BlockTernary(LAYOUT),
    "block threshold ternary": lambda: BlockThresholdTernary(LAYOUT),
    "entropy-coded ternary": lambda: EntropyCoded(Ternary(LAYOUT)),
    "entropy-coded uniform": lambda: coded_uniform(Uniform(LAYOUT, bits=4)),
    "entropy-coded QSGD": lambda: coded_qsgd(QSGD(LAYOUT, smallest=0)),
    "1-bit": lambda: OneBit(LAYOUT),
    "uniform, 1 bit": lambda: Uniform(LAYOUT, bits=1),
    "uniform, 3 bits": lambda: Uniform(LAYOUT, bits=3),
    "uniform, random": lambda: Uniform(LAYOUT, 3, "random"),
    "uniform, last in float32": lambda: Uniform(LAYOUT, 8, chosen=lambda layer: not layer.last),
    "E3M0": lambda: E3M0(LAYOUT),
    "QSGD": lambda: QSGD(LAYOUT),
    "QSGD, buckets": lambda: QSGD(LAYOUT, levels=5, bucket=64, smallest=0),
    "QSGD, Elias": lambda: QSGD(LAYOUT, levels=7, bucket=128, norm="euclidean", coding="elias", smallest=30),
    "adaptive": lambda: Adaptive(LAYOUT),
    "sparse": lambda: Sparse(LAYOUT),
    "top-k": lambda: TopK(LAYOUT, 0.05),
    "top-k, float16": lambda: TopK(LAYOUT, 0.02, values="float16"),
    "top-k, signs": lambda: TopK(LAYOUT, 0.02, values="ternary"),
    "chunked top-k": lambda: ChunkedTopK(LAYOUT, 0.05, size=100),
    "chunked top-k, exact": lambda: ChunkedTopK(LAYOUT, 0.05, lambda layer: max(1, layer.size // 4), exact=True),
    "statistical": lambda: Statistical(LAYOUT),
    "statistical, rows": lambda: Statistical(LAYOUT, 4, rows=True),
    "DGC": lambda: DGC(LAYOUT, 4, sparsity=0.95, momentum=0.9, warmup_epochs=0, epoch_steps=1),
    "WGT": lambda: Thresholded(LAYOUT, 1.0),
    "BGT": lambda: Thresholded(LAYOUT, 1.0, limit=1),
    "QGT": lambda: Thresholded(LAYOUT, 0.1, limit=255),
    "multiples": lambda: SparseMultiples(LAYOUT, 0.25, 1020),
}
VECTOR = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
VECTOR[VECTOR.abs() < 0.5] = 0  # sparse messages have gaps
AWKWARD = [0, 1, 127, 128, 255]


def mutated(message: list[bytes], random: np.random.Generator) -> list[bytes]:
    """The message with bits or bytes changed, cut off or put in, or buffers swapped or left out."""
    buffers = [bytearray(buffer) for buffer in message]
    for _ in range(random.integers(1, 4)):
        if not buffers:
            break
        which = int(random.integers(len(buffers)))
        chosen = buffers[which]
        place = int(random.integers(len(chosen))) if chosen else 0
        match random.integers(10):
            case 0 | 1 if chosen:
                chosen[place] ^= 1 << random.integers(8)
            case 2 if chosen:
                chosen[place] = random.integers(256)
            case 3 if chosen:
                chosen[place] = random.choice(AWKWARD)
            case 4 | 5:  # one count or scale that is 0, or as large as can be
                length = len(chosen[place : place + 4])
                chosen[place : place + 4] = (b"\0" if random.integers(2) else b"\xff") * length
            case 6:
                del chosen[place:]
            case 7:
                chosen[place:place] = random.bytes(random.integers(1, 9))
            case 8:
                buffers[which], buffers[which - 1] = buffers[which - 1], buffers[which]
            case 9:
                del buffers[which]
    return [bytes(buffer) for buffer in buffers]


def level_sum(workers: int, entropy: bool) -> tuple[Any, list[bytes]]:
    ternary = Ternary(LAYOUT)
    total = LevelSum(ternary, workers)
    scales = ternary.limits(VECTOR).scales
    parts = [ternary.encode(VECTOR, Key(0, worker, 0), scales) for worker in range(workers)]
    plain, packed = total.encode(total.sum(parts)), coded_levels(total, ternary)
    codec, message = (packed, packed.pack(plain)) if entropy else (total, plain)
    return codec, [buffer.tobytes() for buffer in message]


SUMS = {"level sum": (2, False), "entropy-coded sum": (4, True), "entropy-coded sum of many": (150, True)}


def coded(name: str) -> tuple[Any, list[bytes]]:
    """The codec of that name and a message of it."""
    if name in SUMS:
        return level_sum(*SUMS[name])
    codec = remembering(CODECS[name]())
    return codec, [buffer.tobytes() for buffer in codec.encode(VECTOR, Key(0, 0, 0), codec.start())]


def fuzz(name: str, count: int) -> None:
    """Decode `count` mutated messages."""
    random = np.random.default_rng(7)
    codec, message = coded(name)
    out = torch.empty(LAYOUT.size)
    refused = 0
    for _ in range(count):
        try:
            vector = codec.decode(mutated(message, random), out)
        except CodecError:
            refused += 1
            continue
        assert vector is out
        assert name == "float32" or bool(vector.isfinite().all())  # of float32 any bits are a message
    assert count // 8 < refused < count  # some mutations leave a message another valid one


NAMES = [*CODECS, *SUMS]
VARIANTS = {
    "block threshold ternary",
    "entropy-coded uniform",
    "entropy-coded QSGD",
    "entropy-coded sum of many",
    "uniform, 1 bit",
    "uniform, random",
    "uniform, last in float32",
    "QSGD, buckets",
    "top-k, float16",
    "top-k, signs",
    "chunked top-k, exact",
    "statistical, rows",
    "BGT",
    "QGT",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in NAMES]
)
def test_no_bytes_do_harm(name: str) -> None:
    codec, message = coded(name)
    codec.decode(message)
    tracemalloc.start()
    try:
        fuzz(name, MESSAGES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_BYTES


@pytest.mark.full
@pytest.mark.slow
def test_of_a_hundred_thousand_messages_none_does() -> None:
    for name in NAMES:
        fuzz(name, 100_000 // len(NAMES))
