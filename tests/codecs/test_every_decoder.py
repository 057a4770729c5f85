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
from testbed.codecs.dgc import DGC
from testbed.codecs.entropy import EntropyCoded
from testbed.codecs.half import Half
from testbed.codecs.memory import remembering
from testbed.codecs.onebit import OneBit
from testbed.codecs.qsgd import QSGD
from testbed.codecs.sparse import Sparse
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Uniform
from testbed.errors import CodecError
from testbed.layout import Layout

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "1000"))
LAYOUT = Layout.of([("a.weight", (40, 30)), ("a.bias", (40,)), ("b.weight", (7, 11)), ("b.bias", (7,))])
MOST_BYTES = 2_000_000  # the vector is 5 kB; the rest is Python and numba's own
CODECS: dict[str, Callable[[], Any]] = {
    "float32": lambda: Float32(LAYOUT),
    "half": lambda: Half(LAYOUT),
    "ternary": lambda: Ternary(LAYOUT),
    "threshold ternary": lambda: ThresholdTernary(LAYOUT),
    "block ternary": lambda: BlockTernary(LAYOUT),
    "block threshold ternary": lambda: BlockThresholdTernary(LAYOUT),
    "entropy-coded ternary": lambda: EntropyCoded(Ternary(LAYOUT)),
    "1-bit": lambda: OneBit(LAYOUT),
    "uniform": lambda: Uniform(LAYOUT, bits=3),
    "QSGD": lambda: QSGD(LAYOUT),
    "adaptive": lambda: Adaptive(LAYOUT),
    "sparse": lambda: Sparse(LAYOUT),
    "top-k": lambda: TopK(LAYOUT, 0.05),
    "DGC": lambda: DGC(LAYOUT, 4, sparsity=0.95, momentum=0.9, warmup_epochs=0, epoch_steps=1),
    "WGT": lambda: Thresholded(LAYOUT, 1.0),
    "BGT": lambda: Thresholded(LAYOUT, 1.0, limit=1),
    "QGT": lambda: Thresholded(LAYOUT, 0.1, limit=255),
    "multiples": lambda: SparseMultiples(LAYOUT, 0.25, 1020),
}


def mutated(message: list[bytes], random: np.random.Generator) -> list[bytes]:
    """The message with bytes changed, cut off, put in, or buffers swapped, left out or doubled."""
    buffers = [bytearray(buffer) for buffer in message]
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(buffers))) if buffers else 0
        chosen = buffers[place] if buffers else bytearray()
        match random.integers(7):
            case 0 | 1 | 2 if chosen:
                chosen[int(random.integers(len(chosen)))] = int(
                    random.choice([0, 1, 127, 128, 255, random.integers(256)])
                )
            case 3 if chosen:
                del chosen[int(random.integers(len(chosen))) :]
            case 4:
                chosen += random.bytes(int(random.integers(1, 9)))
            case 5 if len(buffers) > 1:
                buffers[place], buffers[place - 1] = buffers[place - 1], buffers[place]
            case 6 if buffers:
                del buffers[place]
    return [bytes(buffer) for buffer in buffers]


def level_sum() -> tuple[Any, list[bytes]]:
    ternary = Ternary(LAYOUT)
    total = LevelSum(ternary, 2)
    vector = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
    scales = ternary.limits(vector).scales
    parts = [ternary.encode(vector, Key(0, worker, 0), scales) for worker in range(2)]
    return total, [buffer.tobytes() for buffer in total.encode(total.sum(parts))]


@pytest.mark.parametrize("name", [*CODECS, "level sum"])
def test_no_bytes_do_harm(name: str) -> None:
    random = np.random.default_rng(7)
    if name == "level sum":
        codec, message = level_sum()
    else:
        codec = remembering(CODECS[name]())
        vector = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
        message = [buffer.tobytes() for buffer in codec.encode(vector, Key(0, 0, 0), codec.start())]
    codec.decode(message)
    tracemalloc.start()
    refused = 0
    for _ in range(MESSAGES):
        try:
            vector = codec.decode(mutated(message, random))
        except CodecError:
            refused += 1
            continue
        assert vector.shape == (LAYOUT.size,) and vector.dtype == torch.float32
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MOST_BYTES
    assert refused > MESSAGES // 4  # sizes alone give so many away
