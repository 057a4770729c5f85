"""Thresholded gradients: what reaches T is sent, the rest is kept to the last bit, and servers' sums are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_vectors import LAYOUT, vector, vectors

from testbed.codecs.base import Key
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(0, 0, 0)
LIMITS = [None, 1, 255]
thresholds = st.one_of(st.sampled_from([0.25, 1.0, 2.0**-100, 2.0**40]), st.floats(1e-3, 1e3))


@settings(max_examples=40)
@given(vectors, thresholds, st.sampled_from(LIMITS))
def test_what_reaches_the_threshold_is_sent(x: torch.Tensor, threshold: float, limit: int | None) -> None:
    codec = Thresholded(LAYOUT, threshold, limit)
    sent = codec.decode(codec.encode(x))
    large = x.abs() >= codec.threshold
    assert torch.equal(sent.sign(), x.sign() * large)
    if limit is None:
        assert torch.equal(sent, x * large)
    else:
        levels = np.minimum(np.floor(x.abs().double().numpy() / codec.threshold), limit)
        assert np.array_equal(sent.abs().numpy(), (levels * codec.threshold).astype(np.float32))


@settings(max_examples=40)
@given(st.lists(vectors, min_size=1, max_size=4), thresholds, st.sampled_from(LIMITS))
def test_the_vector_is_what_is_sent_and_what_is_kept(
    xs: list[torch.Tensor], threshold: float, limit: int | None
) -> None:
    """x == sent + residual: to the last bit for whole values, and for multiples within the stated bounds."""
    codec = ErrorFeedback(Thresholded(LAYOUT, threshold, limit))
    exponent = np.frexp(np.float32(threshold))
    memory = codec.start()
    for given_x in xs:
        x = given_x + memory.residual
        sent = codec.decode(codec.encode(given_x, KEY, memory))
        exact = torch.ones(LAYOUT.size, dtype=torch.bool)
        if limit is not None:
            exact = x.abs() < 2 * np.float32(threshold) * limit
            if exponent[0] == 0.5:
                exact |= x.abs() <= 2.0**24 * threshold
        total = sent.double() + memory.residual.double()
        assert torch.equal(total[exact], x[exact].double())
        assert torch.equal((sent + memory.residual)[exact], x[exact])
        assert bool(((total - x.double()).abs() <= x.abs().double() * 2.0**-24).all())


@settings(max_examples=40)
@given(st.lists(vectors, min_size=1, max_size=4), st.sampled_from(LIMITS))
def test_the_fused_pass_is_the_two_separate_ones(xs: list[torch.Tensor], limit: int | None) -> None:
    codec = Thresholded(LAYOUT, 0.3, limit)
    fused, residual = torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.size)
    for x in xs:
        buffers = codec.encode_with_feedback(x, fused)
        wanted = x + residual
        expected = codec.encode(wanted)
        residual = wanted - codec.decode(expected)
        assert [buffer.tobytes() for buffer in buffers] == [buffer.tobytes() for buffer in expected]
        assert torch.equal(fused, residual)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=8), st.floats(1e-6, 1e6), st.sampled_from([1, 255]))
def test_sums_and_means_at_servers_are_exact(seeds: list[int], threshold: float, limit: int) -> None:
    """Integers come through the float32 sums: those of a server's message are the sums of the workers'."""
    worker = Thresholded(LAYOUT, threshold, limit)
    count = len(seeds)
    messages = [worker.encode(vector(seed) * threshold * 20) for seed in seeds]
    levels = sum(worker.decode(m).double().div(worker.threshold).round() for m in messages)
    assert isinstance(levels, torch.Tensor)
    total = sum((worker.decode(message) for message in messages), torch.zeros(LAYOUT.size))
    lps = SparseMultiples(LAYOUT, worker.threshold, count * limit)
    summed = lps.decode(lps.encode(total))
    assert torch.equal(summed.double().div(worker.threshold).round(), levels)
    assert torch.equal(summed, (levels * worker.threshold).float())
    gs = SparseMultiples(LAYOUT, worker.threshold / count, count * limit)
    mean = gs.decode(gs.encode(summed / count))
    assert torch.equal(mean, (levels * (worker.threshold / count)).float())


def test_the_bytes(cifarnet: Layout, gradient: torch.Tensor) -> None:
    """A sign a value for BGT; for QGT the multiples, too."""
    worker = Thresholded(cifarnet, 0.01, 1)
    counts, gaps, signs = worker.encode(gradient)
    assert signs.nbytes == -(-int(counts.sum()) // 8)
    quantized = Thresholded(cifarnet, 0.01, 255).encode(gradient)
    assert [np.array_equal(a, b) for a, b in zip(quantized[:3], (counts, gaps, signs), strict=True)] == [True] * 3
    assert quantized[3].nbytes < 1.1 * int(counts.sum())  # the paper's byte for each, at most


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("x", [torch.zeros(LAYOUT.size), vector(0) * 1e-3], ids=["zero", "small"])
def test_nothing_reaches_the_threshold(x: torch.Tensor, limit: int | None) -> None:
    codec = ErrorFeedback(Thresholded(LAYOUT, 1.0, limit))
    memory = codec.start()
    buffers = codec.encode(x, KEY, memory)
    assert torch.equal(codec.decode(buffers), torch.zeros(LAYOUT.size))
    assert torch.equal(memory.residual, x)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_error_names_the_layer_and_leaves_the_residual(value: float, limit: int | None) -> None:
    codec = ErrorFeedback(Thresholded(LAYOUT, 1.0, limit))
    memory = codec.start()
    codec.encode(vector(0), KEY, memory)
    before, x = memory.residual.clone(), vector(1)
    x[LAYOUT.layers[3].offset] = value
    for encode in (lambda: codec.encode(x, KEY, memory), lambda: Thresholded(LAYOUT, 1.0, limit).encode(x)):
        with pytest.raises(CodecError, match=r"layer d\.weight: NaN or infinity"):
            encode()
    with pytest.raises(CodecError, match=r"layer d\.weight: NaN or infinity"):
        SparseMultiples(LAYOUT, 1.0, 8).encode(x)
    assert torch.equal(memory.residual, before)


def test_a_multiple_beyond_the_limit_is_refused() -> None:
    x = torch.full((LAYOUT.size,), 9.0)
    message = SparseMultiples(LAYOUT, 1.0, 9).encode(x)
    with pytest.raises(CodecError, match="multiples: one is above 8"):
        SparseMultiples(LAYOUT, 1.0, 8).decode(message)
    assert SparseMultiples(LAYOUT, 1.0, 8).decode(SparseMultiples(LAYOUT, 1.0, 8).encode(x)).unique().tolist() == [8]


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan"), float("inf"), 1e-60])
def test_a_threshold_that_is_none_is_refused(threshold: float) -> None:
    with pytest.raises(CodecError, match="positive"):
        Thresholded(LAYOUT, threshold)
