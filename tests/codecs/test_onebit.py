"""1-bit SGD's codec: its bytes, its means, its error, and feedback that loses nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.base import Key
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.onebit import LONGEST, OneBit
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(seed=0, stream=0, step=0)
# Columns at and around the block boundaries: 8 x 1024 elements, bytes of eight bits.
SHAPES = [(1, 1), (3, 7), (2, 8), (5, 9), (64, 3, 5, 5), (3, 8191), (2, 8192), (2, 8193), (1, 20_000), (12_345,)]


def one_layer(*shape: int) -> OneBit:
    return OneBit(Layout.of([("w.weight", shape)]))


def normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_the_exact_bytes_of_cifarnets_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    means, signs = OneBit(cifarnet).encode(gradient, KEY)
    assert means.nbytes == 8 * (64 + 1 + 64 + 1 + 384 + 1 + 192 + 1 + 10 + 1)
    assert signs.nbytes == 64 * 10 + 8 + 64 * 200 + 8 + 384 * 288 + 48 + 192 * 48 + 24 + 10 * 24 + 2
    assert OneBit(cifarnet).nbytes == means.nbytes + signs.nbytes == 139_330


def test_the_format_bit_by_bit() -> None:
    means, signs = one_layer(1, 11).encode(torch.tensor([1.0, -1, 2, -3, 3, 0, -0.0, 5, 5, 5, -4]), KEY)
    assert means.tolist() == [3.0, -2.0]
    # Two bytes; bit s of byte j is element j + 2 s: [1, 2, 3, -0, 5, -4] and [-1, -3, 0, 5, 5].
    assert signs.tolist() == [0b101000, 0b00011]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_element_becomes_the_mean_of_its_column_and_sign(shape: tuple[int, ...]) -> None:
    x = normal(math.prod(shape)) + 0.3
    decoded = one_layer(*shape).decode(one_layer(*shape).encode(x, KEY)).double()
    rows = x.double().reshape(1 if len(shape) == 1 else shape[0], -1)
    expected = torch.empty_like(rows)
    for row, out in zip(rows, expected, strict=True):
        for sign in (row >= 0, row < 0):
            out[sign] = row[sign].mean()
    torch.testing.assert_close(decoded, expected.reshape(-1), rtol=1e-6, atol=0)


def test_a_long_vector_is_cut_into_columns() -> None:
    size = LONGEST + 5
    codec = one_layer(size)
    x = torch.cat([torch.ones(LONGEST), torch.full((5,), 2.0)])
    assert codec.nbytes == 16 + LONGEST // 8 + 1
    assert torch.equal(codec.decode(codec.encode(x, KEY)), x)


def test_nmse_is_the_theorys() -> None:
    """For a Gaussian the mean of a half is sqrt(2 / pi) sigma, and 1 - 2 / pi of the square is left."""
    x = normal(1_000_000)
    decoded = one_layer(200, 5000).decode(one_layer(200, 5000).encode(x, KEY))
    nmse = float((decoded - x).double().square().sum() / x.double().square().sum())
    assert nmse == pytest.approx(1 - 2 / math.pi, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 1000), st.floats(-30, 30))
def test_feedback_loses_nothing(shape: tuple[int, ...], seed: int, exponent: float) -> None:
    """Element by element, within float32's rounding: what was sent and what is left add up to what was wanted."""
    codec, size, factor = one_layer(*shape), math.prod(shape), 10.0**exponent
    x, residual = normal(size, seed) * factor, normal(size, seed + 1) * factor
    wanted = x + residual
    sent = codec.decode(codec.encode_with_feedback(x, residual, KEY))
    assert torch.allclose(sent.double() + residual.double(), wanted.double(), rtol=2.0**-23, atol=2.0**-23 * factor)


def test_over_many_messages_all_is_sent() -> None:
    """The residual stays bounded, so the mean of what was sent tends to the vector, which one bit alone never does."""
    codec = ErrorFeedback(one_layer(20, 50))
    x, memory, total = normal(1000), codec.start(), torch.zeros(1000)
    for step in range(200):
        total += codec.decode(codec.encode(x, Key(0, 0, step), memory))
    assert float((total / 200 - x).norm() / x.norm()) < 0.05
    once = codec.decode(codec.codec.encode(x, KEY))
    assert float((once - x).norm() / x.norm()) > 0.5


def test_means_of_huge_columns_do_not_overflow() -> None:
    x = torch.full((2, 5000), 3e38)
    x[1] *= -1
    codec = one_layer(2, 5000)
    assert torch.allclose(codec.decode(codec.encode(x.reshape(-1), KEY)), x.reshape(-1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_means_from_the_wire_are_finite(value: float) -> None:
    codec = one_layer(3, 4)
    buffers = codec.encode(normal(12), KEY)
    buffers[0][3] = value
    with pytest.raises(CodecError, match=r"layer w\.weight: a column's mean is not finite"):
        codec.decode(buffers)
