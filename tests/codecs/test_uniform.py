"""k-bit uniform quantization: its bytes, its bounds, its statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.base import Key
from testbed.codecs.uniform import MAX_BITS, Rounding, Uniform
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(seed=0, stream=0, step=0)
SIZES = [1, 2, 7, 8, 9, 1023, 8191, 8192, 8193, 8200, 20_001]
BITS = range(1, MAX_BITS + 1)


def one_layer(size: int, bits: int = 8, rounding: Rounding = "nearest") -> Uniform:
    return Uniform(Layout.of([("w.weight", (size,))]), bits, rounding)


def normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_the_exact_bytes_of_cifarnets_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = Uniform(cifarnet)
    eighths = 600 + 8 + 12_800 + 8 + 110_592 + 48 + 9_216 + 24 + 240 + 2
    for bits in BITS:
        assert sum(buffer.nbytes for buffer in codec.encode(gradient, bits=bits)) == codec.nbytes(bits)
        assert codec.nbytes(bits) == 1 + 10 * 8 + (1_068_298 if bits == 8 else bits * eighths)
    dense = Uniform(cifarnet, 2, chosen=lambda layer: layer.name in ("fc1.weight", "fc2.weight"))
    assert dense.nbytes() == 1 + 16 + 4 * (1_068_298 - 384 * 2304 - 192 * 384) + 2 * (110_592 + 9_216)


def test_the_format_bit_by_bit() -> None:
    layout = Layout.of([("w.weight", (10,)), ("last.weight", (1,))])
    codec = Uniform(layout, 2, chosen=lambda layer: not layer.last)
    x = torch.tensor([-1.0, 2, 0, 1, -1, 2, 0, 1, 1.4, 1.6, 0.5])
    bits, ranges, floats, levels = codec.encode(x)
    assert bits.tolist() == [2]
    assert ranges.tolist() == [-1.0, 2.0]
    assert floats.tolist() == [0.5]
    # Levels 0 3 1 2 0 3 1 2 2 3; a plane has two bytes, bit s of byte j is element j + 2 s.
    assert levels.tolist() == [0b01010, 0b10101, 0b10000, 0b11111]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SIZES), st.sampled_from(BITS), st.integers(0, 1000), st.floats(-37, 37), st.booleans())
def test_no_error_is_above_half_a_step(size: int, bits: int, seed: int, exponent: float, random: bool) -> None:
    """A whole step where rounding is at random; beside float32's own rounding."""
    codec = one_layer(size, bits, "random" if random else "nearest")
    x = ((normal(size, seed) + 1).double().clamp(-3, 3) * 10**exponent).float()
    decoded = codec.decode(codec.encode(x, KEY)).double()
    low, high = x.double().min(), x.double().max()
    step = (high - low) / (2**bits - 1)
    bound = step * (1 if random else 0.5) + 2.0**-24 * max(abs(low), abs(high)) + 2.0**-149
    assert bool(((decoded - x.double()).abs() <= bound * (1 + 1e-9)).all())
    assert decoded[x.argmin()] == low
    assert decoded[x.argmax()] == high


@pytest.mark.parametrize("bits", BITS)
def test_the_range_of_float32_from_end_to_end(bits: int) -> None:
    top = 3.4028234e38
    x = torch.tensor([-top, top, 0.0, 1e38])
    decoded = one_layer(4, bits).decode(one_layer(4, bits).encode(x))
    assert decoded[:2].tolist() == x[:2].tolist()
    assert float((decoded - x).double().abs().max()) <= 2 * top / (2**bits - 1) / 2 * 1.0001


def test_a_message_says_itself_how_many_bits_it_has() -> None:
    codec, x = one_layer(3000, 4), normal(3000)
    for bits in BITS:
        message = codec.encode(x, bits=bits)
        assert torch.equal(codec.decode(message), one_layer(3000, bits).decode(one_layer(3000, bits).encode(x)))


def test_levels_are_those_of_the_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = Uniform(cifarnet, 3, "random", lambda layer: not layer.bias)
    quantized = codec.quantize(gradient, KEY)
    assert quantized.bits == 3
    assert quantized.levels.max() == 7
    decoded = codec.decode(codec.encode(gradient, KEY))
    start = 0
    for layer, (low, high) in zip(codec.selection.coded, quantized.ranges.astype(np.float64), strict=True):
        levels = quantized.levels[start : start + layer.size]
        expected = (low + levels * ((high - low) / 7)).astype(np.float32)
        assert np.array_equal(decoded[layer.slice].numpy(), expected)
        start += layer.size
    for layer in codec.selection.floats:
        assert torch.equal(decoded[layer.slice], gradient[layer.slice])


@pytest.mark.parametrize(("rounding", "part"), [("nearest", 12), ("random", 6)])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_error_is_the_theorys(rounding: Rounding, part: int, bits: int) -> None:
    """Values spread evenly over the range: step^2 / 12, at random step^2 / 6."""
    x = torch.rand(600_000, generator=torch.Generator().manual_seed(1))
    x[0], x[1] = 0, 1
    codec = one_layer(x.numel(), bits, rounding)
    error = float((codec.decode(codec.encode(x, KEY)) - x).double().square().mean())
    assert error == pytest.approx((2**bits - 1) ** -2 / part, rel=0.01)


@pytest.mark.parametrize("bits", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_rounding_at_random_is_unbiased(bits: int) -> None:
    size, draws = 3000, 1000
    x, codec, total = normal(size), one_layer(size, bits, "random"), np.zeros(size)
    for step in range(draws):
        total += codec.decode(codec.encode(x, Key(0, 0, step))).numpy()
    low, high = float(x.min()), float(x.max())
    step_size = (high - low) / (2**bits - 1)
    part = ((x.double().numpy() - low) / step_size) % 1
    deviation = step_size * np.sqrt(part * (1 - part) / draws)
    certain = (part < 1e-4) | (part > 1 - 1e-4)
    z = (total / draws - x.double().numpy())[~certain] / deviation[~certain]
    assert abs(z.mean()) < 5 / np.sqrt(size)
    assert abs(z.std() - 1) < 0.07
    assert np.abs(z).max() < 5.5


def test_rounding_at_random_needs_a_key_and_leaves_the_residual_alone_without() -> None:
    codec, residual = one_layer(3, 2, "random"), torch.ones(3)
    with pytest.raises(CodecError, match="needs a key"):
        codec.encode_with_feedback(torch.arange(3.0), residual)
    assert torch.equal(residual, torch.ones(3))


@pytest.mark.parametrize("bits", [0, 9, -1])
def test_bits_are_checked(bits: int) -> None:
    with pytest.raises(CodecError, match="1 to 8 bits"):
        one_layer(3, bits)
    with pytest.raises(CodecError, match="1 to 8 bits"):
        one_layer(3).encode(torch.zeros(3), bits=bits)
    message = one_layer(3).encode(torch.zeros(3))
    message[0][0] = bits % 256
    with pytest.raises(CodecError, match="1 to 8 bits"):
        one_layer(3).decode(message)


@pytest.mark.parametrize("range_", [(1.0, 0.0), (np.nan, 1.0), (-np.inf, 0.0), (0.0, np.inf)])
def test_a_range_from_the_wire_is_one(range_: tuple[float, float]) -> None:
    message = one_layer(3).encode(torch.zeros(3))
    message[1][:] = range_
    with pytest.raises(CodecError, match=r"layer w\.weight: .* no range of finite values"):
        one_layer(3).decode(message)
