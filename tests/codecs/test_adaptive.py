"""The adaptive quantizer: its error, its bits, its feedback."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs import Key
from testbed.codecs.adaptive import Adaptive, AdaptiveToNorm
from testbed.codecs.memory import ErrorFeedback
from testbed.errors import CodecError
from testbed.layout import Layout

LAYOUT = Layout.of([("a.weight", (40, 50)), ("a.bias", (40,)), ("b.weight", (9, 40)), ("b.bias", (9,))])
LARGEST = float(np.finfo(np.float32).max)
KEY = Key(0, 0, 0)


def normal(size: int = LAYOUT.size, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def one_layer(size: int) -> Layout:
    return Layout.of([("w", (size,))])


def nbytes(buffers: list[np.ndarray]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1000), st.floats(0.001, 0.25), st.sampled_from([0, 1, 2, 1023, 5000]), st.integers(-44, 36))
def test_each_value_is_within_half_a_step(seed: int, error: float, size: int, exponent: int) -> None:
    layout = Layout.of([("w", (size,)), ("b", (3,))])
    vector = (normal(layout.size, seed).double() * 10.0**exponent).float()
    codec = Adaptive(layout, error)
    steps, _ = buffers = codec.encode(vector)
    decoded = codec.decode(buffers)
    for layer, step in zip(layout, steps.astype(np.float64), strict=True):
        rest = vector[layer.slice].double() - decoded[layer.slice].double()
        assert bool((rest.abs() <= step * (0.5 + 1e-6)).all())
        ratio = vector[layer.slice].double() / (step or 1.0)
        levels = decoded[layer.slice].double() / (step or 1.0)
        clear = (ratio - ratio.floor() - 0.5).abs() > 1e-4  # of a tie between two levels
        assert torch.allclose(levels[clear], ratio[clear].round(), atol=1e-4)


@pytest.mark.parametrize("error", [0.01, 0.05, 0.1])
def test_the_error_is_the_one_asked_for(error: float) -> None:
    vector = normal(200_000)
    codec = Adaptive(one_layer(200_000), error)
    rest = codec.decode(codec.encode(vector)) - vector
    assert float(rest.square().sum() / vector.square().sum()) == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize("error", [0.002, 0.01, 0.05])
def test_the_bits_are_the_entropy_of_the_levels(error: float) -> None:
    """Gaussian, fine steps: log2(sigma * sqrt(2 pi e) / step) bits; by chance still within 1 % at these."""
    vector = normal(1_000_000)
    bits = 8 * nbytes(Adaptive(one_layer(vector.numel()), error).encode(vector)) / vector.numel()
    assert bits == pytest.approx(np.log2(np.sqrt(2 * np.pi * np.e) / np.sqrt(12 * error)), rel=0.02)


def test_a_layer_twice_as_large_gets_one_bit_more() -> None:
    size = 100_000
    layout = Layout.of([("large.weight", (size,)), ("small.weight", (size,))])
    codec = Adaptive(layout, 0.005)

    def bits(factor: float) -> float:
        """Of the layer that is `factor` times the other, less those of the other."""
        vector = torch.cat([factor * normal(size), normal(size, 1)])
        symbols = codec.runs.unpack(codec.encode(vector)[1])
        entropies = []
        for part in (symbols[:size], symbols[size:]):
            shares = np.bincount(part)[np.bincount(part) > 0] / size
            entropies.append(-(shares * np.log2(shares)).sum())
        return entropies[0] - entropies[1]

    assert bits(1) == pytest.approx(0, abs=0.02)
    assert bits(2) == pytest.approx(1, abs=0.02)
    assert bits(4) == pytest.approx(2, abs=0.05)


def test_a_layer_far_below_the_others_gets_no_bits() -> None:
    vector = normal()
    vector[:2000] *= 1e-3
    decoded = Adaptive(LAYOUT).decode(Adaptive(LAYOUT).encode(vector))
    assert not decoded[:2000].any()
    assert bool(decoded[2000:].any())


def test_eight_bits_at_most() -> None:
    vector = normal()
    vector[0] = 1e6
    codec = Adaptive(LAYOUT, 0.001)
    steps, _ = buffers = codec.encode(vector)
    assert steps[0] == pytest.approx(1e6 / 127)
    assert steps[1] < steps[0]
    assert codec.decode(buffers)[0] == pytest.approx(1e6)


def test_exact_bytes_of_zeros() -> None:
    steps, symbols = Adaptive(LAYOUT).encode(torch.zeros(LAYOUT.size))
    assert steps.tolist() == [0.0] * 4
    assert symbols.nbytes == 4 * 2  # a constant run a layer
    assert not Adaptive(LAYOUT).decode([steps, symbols]).any()


@pytest.mark.parametrize("layout", [Layout(()), one_layer(0), one_layer(1)])
def test_empty_and_one_element(layout: Layout) -> None:
    vector = torch.full((layout.size,), -2.0)
    codec = Adaptive(layout)
    assert torch.allclose(codec.decode(codec.encode(vector)), vector, rtol=0.6)


@pytest.mark.parametrize("value", [1e-43, 1e-38, LARGEST / 2, LARGEST])
def test_extreme_values_stay_finite(value: float) -> None:
    vector = torch.full((LAYOUT.size,), value)
    vector[::2] *= -0.75
    for error in (1e-4, 0.05, 0.25):
        decoded = Adaptive(LAYOUT, error).decode(Adaptive(LAYOUT, error).encode(vector)).double()
        assert bool(decoded.isfinite().all())
        assert float((decoded - vector).square().sum() / vector.double().square().sum()) < 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.001, 0.25), st.floats(-20, 20))
def test_what_is_not_sent_is_kept(seed: int, error: float, exponent: float) -> None:
    codec = ErrorFeedback(Adaptive(LAYOUT, error))
    memory = codec.start()
    memory.residual = normal(seed=seed + 1) * 10.0**exponent
    wanted = normal(seed=seed) + memory.residual
    sent = codec.decode(codec.encode(normal(seed=seed), KEY, memory))
    assert torch.equal(memory.residual, wanted - sent)


def test_with_feedback_all_that_was_meant_arrives() -> None:
    """The sum of what was sent stays within one residual of the sum of the gradients, in every layer."""
    codec = ErrorFeedback(Adaptive(LAYOUT, 0.1))
    memory, sent = codec.start(), torch.zeros(LAYOUT.size)
    gradient = normal()
    gradient[:2000] *= 0.05
    for step in range(200):
        sent += codec.decode(codec.encode(gradient, Key(0, 0, step), memory))
    assert float((sent / 200 - gradient).abs().max()) < 0.01


def test_a_refused_vector_leaves_the_residual() -> None:
    codec = ErrorFeedback(Adaptive(LAYOUT))
    memory = codec.start()
    memory.residual += 1
    vector = normal()
    vector[2000] = torch.inf
    with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity"):
        codec.encode(vector, KEY, memory)
    assert bool((memory.residual == 1).all())


@pytest.mark.parametrize("step", [np.nan, np.inf, -1.0, LARGEST])
def test_a_step_from_the_wire_gives_finite_values(step: float) -> None:
    steps, symbols = Adaptive(LAYOUT).encode(normal())
    steps[1] = step
    with pytest.raises(CodecError, match=r"layer a\.bias: \d+ steps of"):
        Adaptive(LAYOUT).decode([steps, symbols])


@pytest.mark.parametrize("error", [0.0, 0.26, -1.0])
def test_the_error_is_a_fraction(error: float) -> None:
    with pytest.raises(CodecError, match=r"0 to 0\.25"):
        Adaptive(LAYOUT, error)


def test_a_large_norm_takes_more_bits_than_a_small_one() -> None:
    """Against a sender's first vector: of twice its norm a bit more an element, of a tenth hardly any."""
    codec = AdaptiveToNorm(Adaptive(one_layer(100_000), 0.01), feedback=False)
    memory, vector = codec.start(), normal(100_000)
    bits = [8 * nbytes(codec.encode(vector * size, Key(0, 0, 0), memory)) / 100_000 for size in (1.0, 2.0, 1.0, 0.1)]
    assert bits[1] == pytest.approx(bits[0] + 1, abs=0.1)
    assert bits[2] == bits[0] and bits[3] < 0.5


def test_the_first_vector_that_is_not_zero_counts() -> None:
    codec = AdaptiveToNorm(Adaptive(one_layer(1000)), feedback=True)
    memory = codec.start()
    codec.encode(torch.zeros(1000), Key(0, 0, 0), memory)
    assert memory.mean_square == 0
    codec.encode(normal(1000), Key(0, 0, 1), memory)
    codec.encode(3 * normal(1000), Key(0, 0, 2), memory)
    assert memory.mean_square == pytest.approx(1, rel=0.1)
