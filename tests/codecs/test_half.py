"""Half precision: its bytes, and how far a value may be from what comes back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from testbed.codecs.base import Key
from testbed.codecs.half import Half
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(seed=0, stream=0, step=0)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def one_layer(size: int) -> Half:
    return Half(Layout.of([("w.weight", (size,))]))


def round_trip(x: torch.Tensor) -> torch.Tensor:
    codec = one_layer(x.numel())
    return codec.decode(codec.encode(x, KEY))


def test_the_exact_bytes_of_cifarnets_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = Half(cifarnet)
    assert codec.nbytes == 10 + 2 * 1_068_298
    assert sum(buffer.nbytes for buffer in codec.encode(gradient, KEY)) == codec.nbytes


def test_the_format() -> None:
    shifts, halves = one_layer(3).encode(torch.tensor([1.0, -3.0, 0.0]), KEY)
    assert shifts.tolist() == [13 + 128]  # 3 * 2^13 lies in [2^14, 2^15)
    assert halves.view(np.float16).tolist() == [2.0**13, -3 * 2.0**13, 0.0]


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.float32, st.integers(1, 40), elements=FINITE))
def test_no_error_is_above_the_stated_bound(values: np.ndarray) -> None:
    x = values.astype(np.float64)
    decoded = round_trip(torch.from_numpy(values)).numpy().astype(np.float64)
    bound = np.maximum(2.0**-11 * np.abs(x), 2.0**-39 * np.abs(x).max())
    smallest = 2.0**-150  # half of the smallest float32 that is not zero
    assert (np.abs(decoded - x) <= bound + smallest).all()


@pytest.mark.parametrize("exponent", range(-149, 128, 7))
def test_eleven_digits_survive_at_every_magnitude(exponent: int) -> None:
    """What is a half times a power of two comes back as it is, from denormals to the largest numbers."""
    values = torch.arange(-2047.0, 2048.0).double() * 2.0 ** (exponent - 11 if exponent > -138 else -149)
    x = values.float()
    assert torch.equal(round_trip(x), x)


def test_small_gradients_are_more_exact_than_plain_halves() -> None:
    x = 1e-6 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    own = (round_trip(x) - x).square().sum()
    plain = (x.half().float() - x).square().sum()
    assert own < plain / 100


def test_layers_have_scales_of_their_own() -> None:
    codec = Half(Layout.of([("a.weight", (1,)), ("b.weight", (1,))]))
    x = torch.tensor([1e30, 1e-30])
    assert torch.allclose(codec.decode(codec.encode(x, KEY)), x, rtol=2.0**-11, atol=0)


@pytest.mark.parametrize("shift", [0, 14, 255])
def test_a_shift_that_no_encoder_writes_is_refused(shift: int) -> None:
    buffers = one_layer(2).encode(torch.ones(2), KEY)
    buffers[0][0] = shift
    with pytest.raises(CodecError, match=r"layer w\.weight: a shift of"):
        one_layer(2).decode(buffers)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_halves_that_are_not_finite_are_refused(value: float) -> None:
    buffers = one_layer(2).encode(torch.ones(2), KEY)
    buffers[1].view(np.float16)[1] = value
    with pytest.raises(CodecError, match=r"layer w\.weight: NaN or infinity"):
        one_layer(2).decode(buffers)
