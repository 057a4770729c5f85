"""Sums of ternary messages: exact in integers, packed in the fewest bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs import Key, Levels, LevelSum, Ternary
from testbed.codecs.base import Buffers
from testbed.errors import CodecError
from testbed.layout import Layout

LAYOUT = Layout.of(
    [("a.weight", (37, 229)), ("a.bias", (37,)), ("e.weight", (0, 3)), ("b.weight", (5, 37)), ("b.bias", (5,))]
)
CODEC = Ternary(LAYOUT)


def messages(workers: int, layout: Layout = LAYOUT, codec: Ternary = CODEC, seed: int = 0) -> list[Buffers]:
    """Messages of that many workers on shared scales."""
    generator = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(layout.size, generator=generator) for _ in range(workers)]
    shared = np.maximum.reduce([codec.limits(v).scales for v in vectors])
    return [codec.encode(v, Key(seed, k, 0), shared) for k, v in enumerate(vectors)]


def digits(buffers: Buffers) -> np.ndarray:
    """A message's ternary layers as -1, 0, 1."""
    decoded = CODEC.decode(buffers)
    return np.concatenate([decoded[layer.slice].sign().to(torch.int64) for layer in CODEC.ternary])


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 8, 40, 127, 128, 140]), st.integers(0, 100))
def test_a_sum_is_the_sum_of_the_decoded_messages(workers: int, seed: int) -> None:
    sent = messages(workers, seed=seed)
    total = LevelSum(CODEC, workers).sum(sent)
    expected = sum(digits(message) for message in sent)
    assert np.array_equal(total.raised.astype(np.int64) - workers, expected)
    assert total.raised.dtype == (np.uint8 if workers <= 127 else np.uint16)
    floats = np.zeros(CODEC.float_size, np.float32)
    for message in sent:
        floats += message[1]
    assert np.array_equal(total.floats, floats)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8, 127, 128, 200])
def test_what_is_packed_comes_back(workers: int) -> None:
    codec = LevelSum(CODEC, workers)
    random = np.random.default_rng(workers)
    elements = sum(layer.size for layer in CODEC.ternary)
    raised = random.integers(0, 2 * workers + 1, elements).astype(np.uint8 if workers <= 127 else np.uint16)
    sent = Levels(workers, np.array([1, 2, 3], np.float32), np.ones(CODEC.float_size, np.float32), raised)
    buffers = codec.encode(sent)
    assert sum(buffer.nbytes for buffer in buffers) == codec.nbytes
    came = codec.unpack([buffer.tobytes() for buffer in buffers])
    assert np.array_equal(came.raised, raised)
    assert np.array_equal(came.scales, sent.scales)
    assert np.array_equal(came.floats, sent.floats)


@pytest.mark.parametrize(
    ("workers", "bits", "level_bytes"), [(1, 2, 266_592), (2, 3, 399_888), (4, 4, 533_184), (8, 5, 666_480)]
)
def test_the_exact_bytes_of_cifarnets_sum(cifarnet: Layout, workers: int, bits: int, level_bytes: int) -> None:
    codec = LevelSum(Ternary(cifarnet), workers)
    assert codec.bits == bits == int(np.ceil(np.log2(2 * workers + 1)))
    assert level_bytes == bits * (600 + 8 + 12_800 + 8 + 110_592 + 48 + 9_216 + 24)
    assert codec.nbytes == 32 + 7_720 + level_bytes


def test_the_format_bit_by_bit() -> None:
    layout = Layout.of([("w.weight", (10,)), ("last.weight", (1,))])
    codec = LevelSum(Ternary(layout), 2)
    raised = np.array([0, 4, 1, 2, 3, 4, 0, 1, 2, 4], np.uint8)
    levels = Levels(2, np.ones(1, np.float32), np.zeros(1, np.float32), raised)
    # Segments of two: byte j of a plane holds elements j, j + 2, ..., j + 8.
    planes = [[int(sum(((raised[j + 2 * s] >> k) & 1) << s for s in range(5))) for j in range(2)] for k in range(3)]
    assert codec.encode(levels)[2].tolist() == [byte for plane in planes for byte in plane]


def test_the_decoded_vector_is_the_mean_of_the_decoded_messages() -> None:
    sent = messages(5)
    codec = LevelSum(CODEC, 5)
    mean = torch.stack([CODEC.decode(message) for message in sent]).double().mean(0)
    out = torch.empty(LAYOUT.size)
    decoded = codec.decode(codec.encode(codec.sum(sent)), out)
    assert decoded is out
    assert torch.allclose(decoded.double(), mean, rtol=1e-6, atol=1e-6)
    assert torch.equal(codec.mean(codec.sum(sent)), decoded)


def test_sums_of_data_centers_add_up_to_the_sum_of_all() -> None:
    sent = messages(9)
    parts = [LevelSum(CODEC, 4).sum(sent[:4]), LevelSum(CODEC, 5).sum(sent[4:])]
    whole, direct = LevelSum(CODEC, 9).add(parts), LevelSum(CODEC, 9).sum(sent)
    assert whole.count == 9
    assert np.array_equal(whole.raised, direct.raised)
    assert np.allclose(whole.floats, direct.floats, rtol=1e-6, atol=1e-6)


def test_sums_widen_where_their_total_no_longer_fits_a_byte() -> None:
    sent = messages(1)
    parts = [LevelSum(CODEC, 100).sum(sent * 100)] * 2
    whole = LevelSum(CODEC, 200).add(parts)
    assert np.array_equal(whole.raised.astype(np.int64) - 200, 200 * digits(sent[0]))


@pytest.mark.parametrize("scale", [3.4e38, 1e-38, 1e-44, 0.0])
def test_extreme_scales_neither_overflow_nor_vanish(scale: float) -> None:
    layout = Layout.of([("w.weight", (7000,)), ("last.weight", (1,))])
    codec = Ternary(layout, clip=None)
    vector = torch.full((layout.size,), scale)
    total = LevelSum(codec, 3).sum([codec.encode(vector, Key(0, k, 0)) for k in range(3)])
    total.floats[:] = 0
    assert torch.equal(LevelSum(codec, 3).mean(total)[:-1], vector[:-1])


def test_one_scale_for_the_whole_model() -> None:
    codec = Ternary(LAYOUT, layerwise=False)
    sent = messages(3, codec=codec)
    mean = torch.stack([codec.decode(message) for message in sent]).double().mean(0)
    sums = LevelSum(codec, 3)
    assert torch.allclose(sums.decode(sums.encode(sums.sum(sent))).double(), mean, rtol=1e-6, atol=1e-6)


def test_a_large_layer_is_the_same_on_any_number_of_threads() -> None:
    layout = Layout.of([("w.weight", (2_500_003,)), ("last.weight", (1,))])
    ternary = Ternary(layout)
    sent = messages(3, layout, ternary)
    codec = LevelSum(ternary, 3)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            buffers = codec.encode(codec.sum(sent))
            results.append((buffers, codec.decode(buffers)))
    finally:
        torch.set_num_threads(threads)
    (first, mean), (second, again) = results
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(mean, again)
    decoded = torch.stack([ternary.decode(message) for message in sent]).mean(0)
    assert torch.allclose(mean, decoded, rtol=1e-5, atol=1e-6)


def test_sums_that_mean_nothing_are_refused() -> None:
    sent = messages(3)
    with pytest.raises(CodecError, match="no messages"):
        LevelSum(CODEC, 3).sum([])
    with pytest.raises(CodecError, match="more than 2 messages"):
        LevelSum(CODEC, 2).sum(sent)
    with pytest.raises(CodecError, match="not complete"):
        LevelSum(CODEC, 4).encode(LevelSum(CODEC, 4).sum(sent))
    with pytest.raises(CodecError, match=r"layer a\.weight: messages on different scales"):
        LevelSum(CODEC, 3).sum([sent[0], messages(1, seed=5)[0]])
    with pytest.raises(CodecError, match="workers, not 0"):
        LevelSum(CODEC, 0)


def test_a_float_layer_that_overflows_is_named() -> None:
    vector = torch.full((LAYOUT.size,), 3e38)
    codec = LevelSum(CODEC, 2)
    total = codec.sum([CODEC.encode(vector, Key(0, k, 0)) for k in range(2)])
    with pytest.raises(CodecError, match=r"layer b\.weight: NaN or infinity"):
        codec.encode(total)


def test_corrupt_messages_are_refused() -> None:
    codec = LevelSum(CODEC, 3)  # levels 0 .. 6 in three bits: 7 is no level
    buffers = codec.encode(codec.sum(messages(3)))
    broken = [*buffers[:2], np.full_like(buffers[2], 255)]
    with pytest.raises(CodecError, match=r"layer a\.weight: a level beyond -3 \.\. 3"):
        codec.decode(broken)
    with pytest.raises(CodecError, match=r"levels: .* bytes expected"):
        codec.decode([*buffers[:2], buffers[2][:-1]])
    with pytest.raises(CodecError, match=r"layer a\.bias: a scale"):
        codec.decode([np.array([1, np.nan, 1], np.float32), *buffers[1:]])
