"""Sparse vectors on the wire: what is not zero comes back to the last bit, and what is no message is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparse_vectors import LAYOUT, nbytes, vector, vectors

from testbed.codecs.base import Buffers
from testbed.codecs.sparse import Floats, HalfFloats, Kept, Signs, Sparse, SparseCodec, Values
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.errors import CodecError
from testbed.layout import Layout

CODEC = Sparse(LAYOUT)


@given(vectors)
def test_every_element_comes_back_to_the_last_bit(x: torch.Tensor) -> None:
    buffers = CODEC.encode(x)
    assert torch.equal(CODEC.decode(buffers), x)
    assert torch.equal(CODEC.decode([buffer.tobytes() for buffer in buffers], torch.ones(LAYOUT.size)), x)
    kept = CODEC.unpack(buffers)
    assert np.array_equal(kept.places, np.flatnonzero(x))
    assert int(buffers[0].sum()) == kept.places.size


@pytest.mark.parametrize("value", [1e-45, -1e-45, 1.1754942e-38, -1.0, 3.4e38])
@pytest.mark.parametrize("size", [0, 1, 64, 1000])
def test_layers_of_one_value(size: int, value: float) -> None:
    layout = Layout.of([("w.weight", (1, size))])
    x = torch.full((size,), value)
    buffers = Sparse(layout).encode(x)
    assert torch.equal(Sparse(layout).decode(buffers), x)
    # The gaps are a parameter and a bit each, the values' exponents likewise.
    assert [buffer.nbytes for buffer in buffers] == [4, 1 + -(-size // 8), 1, 1 + -(-size // 8), 3 * size]


def test_a_zero_vector_is_next_to_nothing() -> None:
    assert nbytes(CODEC.encode(torch.zeros(LAYOUT.size))) == 7 * (4 + 1 + 1 + 1)
    nothing = Sparse(Layout(()))
    assert nothing.decode(nothing.encode(torch.empty(0))).shape == (0,)


def test_the_format_byte_by_byte() -> None:
    codec = Sparse(Layout.of([("a.weight", (1, 3)), ("b.weight", (1, 9))]))
    x = torch.zeros(12)
    x[0], x[4], x[10] = 1.5, -8.0, 2.0
    counts, gaps, largest, lower, fractions = codec.encode(x)
    assert counts.tolist() == [1, 2]
    assert gaps.tolist() == [0, 1, 0b1_1, 0b100_1_1]  # parameters; remainders 1, 1; quotients 0 and 0, 2
    assert largest.tolist() == [127, 130]
    assert lower.tolist() == [0, 0, 0b100_1_1]  # 127 - 127; 130 - 130, 130 - 128
    assert fractions.tolist() == [0, 0, 0x40, 0, 0, 0x80, 0, 0, 0]


@given(st.lists(vectors, min_size=1, max_size=4))
def test_adding_messages_is_adding_vectors(xs: list[torch.Tensor]) -> None:
    total, expected = torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.size)
    for x in xs:
        CODEC.add(CODEC.encode(x), total)
        expected += x
    assert torch.equal(total, expected)


def test_a_vector_with_strides() -> None:
    x = torch.stack([vector(0), vector(1)], 1)[:, 0]
    assert not x.is_contiguous()
    assert torch.equal(CODEC.decode(CODEC.encode(x)), vector(0))


def test_a_message_does_not_share_memory_with_its_vector() -> None:
    x = vector(0)
    buffers = CODEC.encode(x)
    x.fill_(7)
    assert torch.equal(CODEC.decode(buffers), vector(0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_names_its_layer(value: float) -> None:
    x = vector(0)
    x[LAYOUT.layers[4].offset + 64] = value
    with pytest.raises(CodecError, match=r"layer e\.bias: NaN or infinity"):
        CODEC.encode(x)


@given(vectors)
def test_half_floats_are_the_nearest(x: torch.Tensor) -> None:
    codec = SparseCodec(LAYOUT, HalfFloats())
    places = np.flatnonzero(x).astype(np.uint32)
    decoded = codec.decode(codec.pack(Kept(places, x.numpy()[places])))
    assert torch.equal(decoded, x.clamp(-65504, 65504).half().float())


@given(vectors)
def test_signs_have_the_scale_of_the_least_squared_error(x: torch.Tensor) -> None:
    codec = SparseCodec(LAYOUT, Signs())
    places = np.flatnonzero(x).astype(np.uint32)
    buffers = codec.pack(Kept(places, x.numpy()[places]))
    assert buffers[-1].nbytes == -(-places.size // 8)
    decoded = codec.decode(buffers)
    assert torch.equal(decoded.sign(), x.sign() * (decoded != 0))
    for layer in LAYOUT:
        kept = x[layer.slice][x[layer.slice] != 0].double()
        scale = kept.abs().mean().float() if kept.numel() else torch.tensor(0.0)
        assert torch.allclose(decoded[layer.slice].abs(), scale * (x[layer.slice] != 0), rtol=1e-6, atol=0)


@given(vectors, st.sampled_from([Floats(), HalfFloats(), Signs()]))
def test_sent_is_what_is_decoded(x: torch.Tensor, values: Values) -> None:
    codec = SparseCodec(LAYOUT, values)
    places = np.flatnonzero(x).astype(np.uint32)
    kept = Kept(places, x.numpy()[places])
    assert np.array_equal(codec.sent(kept.values, places), codec.unpack(codec.pack(kept)).values)


def _too_many(buffers: Buffers) -> None:
    buffers[0][2] = 64


def _beyond(buffers: Buffers) -> None:
    buffers[:] = CODEC.pack(Kept(np.array([1 + 63], np.uint32), np.ones(1, np.float32)))
    buffers[0][2:4] = buffers[0][3:1:-1].copy()  # a gap of 0 in d becomes one in c ...
    buffers[1] = np.array([0] * 7 + [0, 0, 0, 0, 0, 0, 0, 0x80], np.uint8)  # ... of 63


def _endless(buffers: Buffers) -> None:
    buffers[1][-1] = 0


def _short(buffers: Buffers) -> None:
    buffers[4] = buffers[4][:-1]


def _infinite(buffers: Buffers) -> None:
    buffers[2][:] = 255


def _negative_exponent(buffers: Buffers) -> None:
    buffers[2][:] = 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_too_many, r"layer c\.weight: a message keeps elements beyond its 63"),
        (_beyond, r"layer c\.weight: a message keeps elements beyond its 63"),
        (_endless, "gaps: not the Rice code"),
        (_short, r"fractions: \d+ contiguous bytes expected"),
        (_infinite, r"layer \w\.\w+: NaN or infinity"),
        (_negative_exponent, "lower exponents: one is below 0"),
        (lambda buffers: buffers.pop(), "5 buffers"),
    ],
)
def test_what_is_no_message_is_refused(spoil: Callable[[Buffers], None], message: str) -> None:
    buffers = CODEC.encode(vector(0))
    spoil(buffers)
    with pytest.raises(CodecError, match=message):
        CODEC.decode(buffers)


def test_a_model_beyond_32_bits_is_refused() -> None:
    with pytest.raises(CodecError, match="32-bit places"):
        Sparse(Layout.of([("w.weight", (1 << 16, 1 << 16))]))


def test_places_beyond_2_to_the_24() -> None:
    size = (1 << 24) + 1001
    codec = Sparse(Layout.of([("w.weight", (1, size))]))
    x = torch.zeros(size)
    x[[5, 1 << 24, (1 << 24) + 1, size - 1]] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(codec.decode(codec.encode(x)), x)


@pytest.mark.parametrize(
    "codec",
    [
        CODEC,
        TopK(LAYOUT, 0.02, values="float16"),
        TopK(LAYOUT, 0.02, values="ternary"),
        Thresholded(LAYOUT, 2.0, 1),
        SparseMultiples(LAYOUT, 0.5, 1000),
    ],
    ids=["sparse", "half", "signs", "one bit", "multiples"],
)
def test_counts_of_a_large_message_do_not_make_room_for_one(codec: SparseCodec) -> None:
    """A message that claims all elements of all layers, and carries none, is refused at once."""
    message = codec.encode(vector(5, filled=0.3, spread=2))
    counts = np.array([layer.size for layer in LAYOUT], np.uint32)
    for claimed in (counts, np.full_like(counts, 2**32 - 1)):
        tracemalloc.start()
        with pytest.raises(CodecError):
            codec.decode([claimed, *message[1:]], torch.empty(LAYOUT.size))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 * LAYOUT.size
