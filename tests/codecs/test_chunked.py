"""The largest of every chunk in 2 bits: which are kept, what they become, and how many bytes that takes."""

from __future__ import annotations

from functools import reduce
from math import sqrt
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.chunked import Bins, ChunkedTopK, chunks
from testbed.errors import CodecError
from testbed.layout import Layout

LAYOUT = Layout.of([("a.weight", (30, 10)), ("a.bias", (30,)), ("none", (0,)), ("b.weight", (7, 1))])


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)  # zeros of both signs, denormals, the largest


def gaussian(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def by_the_rule(layers: list[np.ndarray], bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All means, the bins as packed, and what they stand for; sums go from a layer's first value to its last."""
    count, per_byte, means, bins = 2**bits, 8 // bits, [], []
    for layer in layers:
        x = layer.astype(float)
        centred = x - total(x) / max(x.size, 1)
        deviation = sqrt(total(centred**2) / max(x.size - 1, 1))
        own = np.clip(np.rint(centred / (6 / count * deviation or 1.0)) + count // 2, 0, count - 1).astype(np.uint8)
        means.append([total(x[own == each]) / max(np.count_nonzero(own == each), 1) for each in range(count)])
        bins.append(own)
    table, owners = np.array(means, np.float32), np.repeat(np.arange(len(layers)), [own.size for own in bins])
    codes = np.concatenate(bins)
    bytes_ = np.append(codes, np.zeros(-codes.size % per_byte, np.uint8)).reshape(-1, per_byte)
    packed = (bytes_ << np.arange(0, 8, bits)).sum(1).astype(np.uint8)
    return table.reshape(-1), packed, table[owners, codes]


def total(x: np.ndarray) -> float:
    return reduce(add, x.tolist(), 0.0)


def test_chunks_are_runs_of_layers() -> None:
    cut = chunks(LAYOUT, lambda layer: 128)
    assert [(layer.offset, layer.size) for layer in cut] == [(0, 128), (128, 128), (256, 44), (300, 30), (330, 7)]


def test_every_chunk_keeps_its_largest() -> None:
    vector = gaussian(LAYOUT.size)
    codec = ChunkedTopK(LAYOUT, 0.05, size=100, exact=True)
    found = codec.decode(codec.encode(vector))
    for layer in chunks(LAYOUT, lambda layer: 100):
        own, kept = vector[layer.slice], found[layer.slice]
        count = max(1, -(-layer.size // 20))
        largest = own.abs().sort(descending=True).indices[:count]
        assert torch.equal(kept.nonzero().flatten(), largest.sort().values)
        assert torch.equal(kept[largest], own[largest])


def test_of_equal_magnitudes_the_first_are_kept_and_zeros_never() -> None:
    codec = ChunkedTopK(Layout.of([("w", (8,))]), 0.5, size=4, exact=True)
    found = codec.decode(codec.encode(torch.tensor([1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 3.0, 0.0])))
    assert found.tolist() == [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=40), st.integers(1, 7))
def test_a_value_becomes_the_mean_of_a_bin_and_the_sum_stays(values: list[float], first: int) -> None:
    x = np.array(values, np.float32)
    counts = np.array([min(first, x.size), x.size - min(first, x.size)])
    bins = Bins([1, 1])
    found = bins.decode(bins.encode(x, counts), counts)
    assert found.shape == x.shape
    for own, decoded in zip(np.split(x, [counts[0]]), np.split(found, [counts[0]]), strict=True):
        if not own.size:
            continue
        assert len(set(decoded.tolist())) <= 4
        np.testing.assert_allclose(own.sum(dtype=float), decoded.sum(dtype=float), rtol=1e-4, atol=1e-2)
        spread = own.std(ddof=1) if own.size > 1 else 0.0
        near = np.abs(own - own.mean(dtype=float)) < 2 * spread  # what is not cut off
        assert (np.abs(own - decoded)[near] <= 1.51 * spread + 1e-3).all()


@settings(deadline=None)
@given(st.lists(st.lists(st.lists(floats, max_size=5), max_size=3), min_size=1, max_size=5), st.sampled_from([2, 4, 8]))
def test_bytes_and_values_are_those_of_the_rule(layers: list[list[list[float]]], bits: int) -> None:
    """Of layers in chunks, of which each keeps some values; layers begin and end within a byte, and some are empty."""
    parts = [np.array([each for chunk in layer for each in chunk], np.float32) for layer in layers]
    counts = np.array([len(chunk) for layer in layers for chunk in layer], np.int64)
    means, packed, values = by_the_rule(parts, bits)
    bins = Bins([len(layer) for layer in layers], bits)
    buffers = bins.encode(np.concatenate(parts), counts)
    assert [buffer.tobytes() for buffer in buffers] == [means.tobytes(), packed.tobytes()]
    assert bins.decode(buffers, counts).tobytes() == values.tobytes()


def test_bytes_are_those_of_the_format() -> None:
    """Of 2 x 4,096 elements 64 a chunk: counts, gaps of about 7.4 bits, sixteen bytes a layer, 2 bits a value."""
    layout = Layout.of([("w", (8192,))])
    buffers = ChunkedTopK(layout, 1 / 64).encode(gaussian(8192))
    counts, gaps, means, bins = (buffer.nbytes for buffer in buffers)
    assert (counts, means, bins) == (2 * 4, 16, 128 * 2 // 8)
    assert 128 * 7.3 / 8 < gaps < 128 * 8 / 8 + 2


def test_what_it_refuses() -> None:
    codec = ChunkedTopK(LAYOUT, 0.1, size=100)
    bad = gaussian(LAYOUT.size)
    bad[150] = float("inf")
    with pytest.raises(CodecError, match=r"layer a\.weight: NaN or infinity"):
        codec.encode(bad)
    buffers = codec.encode(gaussian(LAYOUT.size))
    with pytest.raises(CodecError, match="bins: "):
        codec.decode([*buffers[:3], buffers[3][:-1]])
    broken = buffers[2].copy()
    broken[:] = np.nan
    with pytest.raises(CodecError, match="NaN or infinity"):
        codec.decode([*buffers[:2], broken, buffers[3]])
    for kept in (0.0, 1.5, 0):
        with pytest.raises(CodecError, match="what is kept of a chunk"):
            ChunkedTopK(LAYOUT, kept)


def test_a_whole_number_is_kept_of_each_chunk_or_all_of_it() -> None:
    """As DeMo's authors keep 32 coefficients of every block; a fraction of 1 is all, and one is one."""
    assert [ChunkedTopK(LAYOUT, kept).wanted(size) for kept, size in ((32, 100), (32, 8), (1.0, 8), (1, 8))] == [
        32,
        8,
        8,
        1,
    ]
