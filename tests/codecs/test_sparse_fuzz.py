"""Mutated messages into every sparse decoder: a typed error or a valid vector, and no more memory than those take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from sparse_vectors import LAYOUT, vector

from testbed.codecs.base import Buffers
from testbed.codecs.sparse import Sparse, SparseCodec
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.errors import CodecError

X = vector(5, filled=0.3, spread=2)
CODECS: dict[str, tuple[SparseCodec, Buffers]] = {
    name: (codec, codec.encode(X))
    for name, codec in {
        "sparse": Sparse(LAYOUT),
        "half": TopK(LAYOUT, 0.02, values="float16"),
        "signs": TopK(LAYOUT, 0.02, values="ternary"),
        "one bit": Thresholded(LAYOUT, 2.0, 1),
        "multiples": SparseMultiples(LAYOUT, 0.5, 1000),
    }.items()
}


def mutated(message: Buffers, random: np.random.Generator) -> list[bytes]:
    """The message with a few bits, bytes or lengths changed."""
    buffers = [bytearray(buffer.tobytes()) for buffer in message]
    for _ in range(random.integers(1, 4)):
        buffer = buffers[random.integers(len(buffers))]
        place = int(random.integers(len(buffer))) if buffer else 0
        match random.integers(5):
            case 0 if buffer:
                buffer[place] ^= 1 << random.integers(8)
            case 1 if buffer:
                buffer[place] = random.integers(256)
            case 2:
                del buffer[place:]
            case 3:
                buffer[place:place] = random.bytes(random.integers(1, 9))
            case 4:
                buffer[place : place + 8] = (b"\0" if random.integers(2) else b"\xff") * len(buffer[place : place + 8])
    return [bytes(buffer) for buffer in buffers]


def fuzz(name: str, count: int) -> None:
    codec, message = CODECS[name]
    random = np.random.default_rng(len(name))
    out, refused = torch.empty(LAYOUT.size), 0
    for _ in range(count):
        try:
            vector = codec.decode(mutated(message, random), out)
        except CodecError:
            refused += 1
        else:
            assert bool(vector.isfinite().all())
    assert count / 10 < refused < count  # some mutations leave a message another valid one


@pytest.mark.parametrize("name", CODECS)
def test_mutated_messages(name: str) -> None:
    fuzz(name, 600)


@pytest.mark.slow
@pytest.mark.parametrize("name", CODECS)
def test_a_hundred_thousand_mutated_messages(name: str) -> None:
    fuzz(name, 100_000 // len(CODECS))


@pytest.mark.parametrize("name", CODECS)
def test_counts_of_a_large_message_do_not_make_room_for_one(name: str) -> None:
    """A message that claims all elements of all layers, and carries none, is refused at once."""
    codec, message = CODECS[name]
    counts = np.array([layer.size for layer in LAYOUT], np.uint32)
    for claimed in (counts, np.full_like(counts, 2**32 - 1)):
        tracemalloc.start()
        with pytest.raises(CodecError):
            codec.decode([claimed, *message[1:]], torch.empty(LAYOUT.size))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 * LAYOUT.size
