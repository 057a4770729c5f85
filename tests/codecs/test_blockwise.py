"""Ternary with a scale for every block: `testbed.codecs.blockwise`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.base import Key
from testbed.codecs.blockwise import BlockTernary, BlockThresholdTernary
from testbed.codecs.kernels.blockwise import BLOCK
from testbed.codecs.kernels.threads import CHUNK
from testbed.codecs.memory import ErrorFeedback
from testbed.errors import CodecError
from testbed.layout import Layer, Layout

KEY = Key(1, 2, 3)
SIZES = [1, 2, 5, 6, 1023, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]


def one(size: int) -> Layout:
    return Layout((Layer("w.weight", (size, 1), 0, last=False),))


def gaussian(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
def test_values_are_zero_or_the_scale_of_their_block_with_their_sign(size: int) -> None:
    x = gaussian(size)
    codec = BlockTernary(one(size))
    buffers = codec.encode(x, KEY)
    assert sum(buffer.nbytes for buffer in buffers) == codec.nbytes == 4 * -(-size // BLOCK) + -(-size // 5)
    y = codec.decode(buffers)
    scales = torch.from_numpy(np.repeat(buffers[0], BLOCK)[:size])
    assert bool(((y == 0) | (y == torch.sign(x) * scales)).all())
    for start in range(0, size, BLOCK):
        part = x[start : start + BLOCK].double()
        sigma = float(part.var(unbiased=False).sqrt())
        top = float(part.abs().max())
        expected = min(2.5 * sigma, top) if sigma > 0 else top
        assert buffers[0][start // BLOCK] == pytest.approx(expected, rel=1e-5)


def test_unbiased_for_the_clipped_vector() -> None:
    size, draws = 2 * BLOCK + 100, 400
    x = gaussian(size)
    codec = BlockTernary(one(size))
    mean = torch.zeros(size, dtype=torch.float64)
    for step in range(draws):
        buffers = codec.encode(x, Key(0, 0, step))
        mean += codec.decode(buffers)
    scales = torch.from_numpy(np.repeat(buffers[0], BLOCK)[:size]).double()
    clipped = x.double().clamp(-scales, scales)
    deviation = ((scales * clipped.abs() - clipped.square()).clamp_min(1e-12) / draws).sqrt()
    z = (mean / draws - clipped) / deviation
    inside = clipped.abs() < scales
    assert abs(float(z[inside].mean())) < 5 / np.sqrt(size)
    assert float(z[inside].square().mean()) == pytest.approx(1.0, abs=0.1)


def test_the_error_is_what_theory_says() -> None:
    size = 40 * BLOCK
    x = gaussian(size)
    codec = BlockTernary(one(size))
    buffers = codec.encode(x, KEY)
    s = torch.from_numpy(np.repeat(buffers[0], BLOCK)[:size])
    c = x.clamp(-s, s)
    expected = float((s * c.abs() - 2 * c * x + x * x).sum() / (x * x).sum())
    found = float((codec.decode(buffers) - x).square().sum() / x.square().sum())
    assert found == pytest.approx(expected, rel=0.01)


@given(st.integers(1, 3 * BLOCK), st.integers(0, 100), st.sampled_from([1e-42, 1e-30, 1.0, 1e25, 1e37]))
@settings(max_examples=60, deadline=None)
def test_feedback_keeps_exactly_what_was_not_sent(size: int, seed: int, unit: float) -> None:
    codec = ErrorFeedback(BlockThresholdTernary(one(size)))
    memory = codec.start()
    for step in range(3):
        x = gaussian(size, seed + step) * unit
        wanted = x + memory.residual
        y = codec.decode(codec.encode(x, Key(0, 0, step), memory))
        assert torch.equal(memory.residual, wanted - y)
        assert bool((y.abs() <= wanted.abs().max()).all())


@given(st.integers(1, 2 * BLOCK), st.sampled_from([0.0, 1e-45, 1e-42, 1e-20, 1e20, 3e38]))
@settings(max_examples=60, deadline=None)
def test_any_magnitude_is_coded(size: int, value: float) -> None:
    x = torch.full((size,), value)
    x[::2] *= -1
    y = BlockTernary(one(size), clip=None).encode(x, KEY)
    decoded = BlockTernary(one(size), clip=None).decode(y)
    torch.testing.assert_close(decoded, x, rtol=1e-6, atol=0.0)  # each is at the scale: drawn for certain


def test_large_layers_are_cut_without_a_trace() -> None:
    size = 2 * CHUNK + 12345
    x = gaussian(size)
    before = torch.get_num_threads()
    messages = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        messages.append(BlockTernary(one(size)).encode(x, KEY))
    torch.set_num_threads(before)
    assert all((a == b).all() for a, b in zip(*messages, strict=True))
    tail = slice(2 * CHUNK, size)
    scales = BlockTernary(one(size - 2 * CHUNK)).encode(x[tail], KEY)[0]
    assert (messages[0][0][2 * CHUNK // BLOCK :] == scales).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, BLOCK + 3, 2 * BLOCK])
def test_what_is_not_finite_is_refused_by_name(bad: float, place: int) -> None:
    x = gaussian(2 * BLOCK + 1)
    x[place] = bad
    for codec in (BlockTernary(one(x.numel())), BlockThresholdTernary(one(x.numel()))):
        with pytest.raises(CodecError, match=r"w\.weight"):
            codec.encode(x, KEY)


def test_float_layers_and_biases(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = BlockThresholdTernary(cifarnet)
    y = codec.decode(codec.encode(gradient))
    for layer in cifarnet:
        assert torch.equal(y[layer.slice], gradient[layer.slice]) == (layer.bias or layer.last)


def test_a_wrong_scale_names_layer_and_block(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = BlockTernary(cifarnet)
    buffers = codec.encode(gradient, KEY)
    block = codec.blocks[2].start + 1
    buffers[0][block] = -1.0
    with pytest.raises(CodecError, match=r"layer conv2\.weight, block 1"):
        codec.decode(buffers)
