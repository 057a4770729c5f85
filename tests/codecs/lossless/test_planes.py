"""Levels in bit planes, entropy coded: they come back, in as few bytes as they are worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs import Key, LevelSum, Ternary
from testbed.codecs.kernels import planar
from testbed.codecs.kernels.threads import CHUNK
from testbed.codecs.lossless.entropy import EntropyCoded
from testbed.codecs.lossless.planes import PlaneRuns, coded_levels, coded_qsgd, coded_uniform
from testbed.codecs.qsgd import QSGD
from testbed.codecs.uniform import Uniform
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(0, 0, 0)
LAYOUT = Layout.of([("w.weight", (400, 1000)), ("last.weight", (1, 1))])
GAUSSIAN = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
BASES = [2, 3, 5, 9, 16, 17, 243, 256, 257, 511, 513, 1013, 65_536]


def layout(*sizes: int) -> Layout:
    return Layout.of([(f"layer{k}", (size,)) for k, size in enumerate(sizes)])


def planes(levels: np.ndarray, base: int) -> np.ndarray:
    bits = (base - 1).bit_length()
    packed = np.empty(bits * -(-levels.size // 8), np.uint8)
    planar.pack(levels, packed, bits)
    return packed


def drawn(size: int, base: int, seed: int = 0) -> np.ndarray:
    """Levels about the middle, as sums are."""
    middle = np.random.default_rng(seed).normal((base - 1) / 2, base / 10, size)
    return middle.round().clip(0, base - 1).astype(np.uint8 if base <= 256 else np.uint16)


def level_sum(workers: int) -> tuple[EntropyCoded, list[np.ndarray]]:
    """The sum of the messages of workers with different gradients."""
    ternary = Ternary(LAYOUT, 2.5)
    total, scales = LevelSum(ternary, workers), 1.01 * ternary.limits(GAUSSIAN).scales
    vectors = (GAUSSIAN.roll(1000 * worker) for worker in range(workers))
    messages = (ternary.encode(vector, Key(0, worker, 0), scales) for worker, vector in enumerate(vectors))
    return coded_levels(total, ternary), total.encode(total.sum(messages))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BASES), st.lists(st.integers(0, 9000), min_size=1, max_size=3), st.integers(0, 99))
def test_any_levels_come_back(base: int, sizes: list[int], seed: int) -> None:
    layers = list(layout(*sizes))
    packed = np.concatenate([planes(drawn(size, base, seed + k), base) for k, size in enumerate(sizes)])
    runs = PlaneRuns(base, layers)
    survey = runs.survey(packed)
    coded = runs.code(survey)
    levels = [size if base > 16 else -(-size // 2) for size in sizes]  # symbols, at most
    assert coded.size <= sum(levels) + len(sizes) + (packed.size if base > 256 else 0)
    assert abs(survey.nbytes - coded.size) <= 64 * len(sizes)
    assert np.array_equal(runs.unpack(coded), packed)
    assert np.array_equal(runs.unpack(coded.tobytes()), packed)


@pytest.mark.parametrize("base", [9, 17, 1013])
def test_the_same_bytes_for_any_number_of_threads(base: int) -> None:
    size = 2 * CHUNK + 12_345
    packed, runs, made = planes(drawn(size, base), base), PlaneRuns(base, list(layout(size))), set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        coded = runs.code(runs.survey(packed))
        assert np.array_equal(runs.unpack(coded), packed)
        made.add(coded.tobytes())
    assert len(made) == 1


@pytest.mark.parametrize(
    ("workers", "plain", "most"), [(1, 2, 1.24), (2, 3, 1.74), (3, 3, 2.03), (4, 4, 2.25), (8, 5, 2.75), (200, 9, 5.1)]
)
def test_a_sum_of_ternary_messages_takes_what_its_levels_are_worth(workers: int, plain: float, most: float) -> None:
    """Of n Gaussian gradients' trits at 2.5 sigma: near log2(sqrt(2 pi e * 0.32 n)) for larger n."""
    codec, message = level_sum(workers)
    assert 8 * message[-1].nbytes == plain * (LAYOUT.size - 1)
    packed = codec.pack(message)
    assert 8 * packed[-1].nbytes < most * LAYOUT.size
    assert all(np.array_equal(a, b) for a, b in zip(codec.unpack(packed), message, strict=True))
    assert torch.equal(codec.decode(packed), codec.codec.decode(message))


@pytest.mark.parametrize(("bits", "most"), [(1, 1.01), (2, 1.2), (3, 1.95), (4, 2.9), (6, 4.9), (8, 6.95)])
def test_uniform_levels_of_gaussian_values(bits: int, most: float) -> None:
    codec = coded_uniform(Uniform(LAYOUT, bits, "random"))
    message = codec.codec.encode(GAUSSIAN, KEY)
    packed = codec.encode(GAUSSIAN, KEY)
    assert 8 * packed[-1].nbytes < most * LAYOUT.size
    assert all(np.array_equal(a, b) for a, b in zip(codec.unpack(packed), message, strict=True))


@pytest.mark.parametrize(("norm", "most"), [("max", 3.3), ("euclidean", 1.15)])
def test_qsgds_levels_take_less_than_elias_codes(norm: str, most: float) -> None:
    fixed, elias = (QSGD(LAYOUT, norm=norm, coding=coding) for coding in ("fixed", "elias"))  # type: ignore[arg-type]
    codec = coded_qsgd(fixed)
    packed = codec.encode(GAUSSIAN, KEY)
    assert torch.equal(codec.decode(packed), fixed.decode(fixed.encode(GAUSSIAN, KEY)))
    nbytes = sum(buffer.nbytes for buffer in packed)
    assert 8 * nbytes < most * LAYOUT.size
    assert nbytes < 0.85 * sum(buffer.nbytes for buffer in elias.encode(GAUSSIAN, KEY))


def test_a_level_that_cannot_be_is_refused_by_the_layers_name() -> None:
    runs = PlaneRuns(9, list(layout(100, 100)))
    bad = np.concatenate([planes(drawn(100, 9), 9), planes(np.full(100, 9, np.uint8), 9)])
    with pytest.raises(CodecError, match="layer layer1: a level that is not below 9"):
        runs.survey(bad)


def test_malformed_bytes_are_refused() -> None:
    size = 5000
    runs = PlaneRuns(1013, list(layout(size)))  # 10 bits, two of them as they are
    good = runs.code(runs.survey(planes(drawn(size, 1013), 1013)))
    for bad in (good[:-1], good[:0], np.append(good, np.uint8(0)), good[: -2 * size // 8 - 1]):
        with pytest.raises(CodecError, match="bytes"):
            runs.unpack(bad)
    with pytest.raises(CodecError, match="a message without buffers"):
        level_sum(2)[0].decode([])
