"""QSGD: its bytes in both codings, its statistics against the paper's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.base import Key
from testbed.codecs.lossless.elias import EliasStreams
from testbed.codecs.qsgd import QSGD, Norm
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(seed=0, stream=0, step=0)
NORMS: list[Norm] = ["max", "euclidean"]


def one_layer(size: int, levels: int = 7, bucket: int = 512, norm: Norm = "max", coding: str = "fixed") -> QSGD:
    return QSGD(Layout.of([("w.weight", (size,))]), levels, bucket, norm, coding, smallest=0)


def normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def norms_of(x: torch.Tensor, bucket: int, norm: Norm) -> np.ndarray:
    """Each element's bucket norm."""
    parts = x.double().split(bucket)
    values = [part.abs().max() if norm == "max" else part.norm() for part in parts]
    return np.concatenate([np.full(len(part), float(value)) for part, value in zip(parts, values, strict=True)])


def test_the_exact_bytes_of_cifarnets_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = QSGD(cifarnet)
    norms, floats, levels = codec.encode(gradient, KEY)
    assert norms.nbytes == 4 * (200 + 1728 + 144)
    assert floats.nbytes == 4 * (4800 + 64 + 64 + 384 + 192 + 1930)  # layers of fewer than 10,000 elements
    assert levels.nbytes == (102_400 + 884_736 + 73_728) // 2
    assert codec.fixed_nbytes == norms.nbytes + floats.nbytes + levels.nbytes == 568_456


def test_the_format_of_fixed_levels() -> None:
    norms, floats, levels = one_layer(9, levels=1, bucket=8).encode(torch.tensor([2.0, -2, 0, 0, 0, 0, 0, -2, -5]), KEY)
    assert norms.tolist() == [2.0, 5.0]
    assert floats.size == 0
    # Raised 2 0 1 1 1 1 1 0 0 in two planes of two bytes; bit s of byte j is element j + 2 s.
    assert levels.tolist() == [0b01110, 0b0110, 0b00001, 0b0000]


def test_the_format_of_elias_codes() -> None:
    """Gaps 1, 1, 4; then the end, a gap of 2 beyond the last: 1+0+1, 1+1+011, 00100+0+1, 010."""
    raised = np.array([1, -3, 0, 0, 0, 1, 0]) + 3
    streams = EliasStreams(["w"], [7], 3)
    packed = streams.pack(raised.astype(np.uint8))
    bits = "101" + "11" + "011" + "00100" + "01" + "010"
    expected = [int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8)]
    assert packed.tolist() == [len(expected), 0, 0, 0, *expected]
    assert np.array_equal(streams.unpack(packed), raised)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.sampled_from([1, 2, 5, 127]), st.floats(0, 1), st.integers(0, 1000))
def test_elias_codes_come_back(size: int, levels: int, density: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    raised = random.integers(0, 2 * levels + 1, size) * (random.random(size) < density)
    raised = np.where(raised == 0, levels, raised).astype(np.uint8)
    streams = EliasStreams(["a", "b"], [size // 3, size - size // 3], levels)
    assert np.array_equal(streams.unpack(streams.pack(raised)), raised)


def test_long_gaps_and_several_streams_come_back() -> None:
    raised = np.full(2_500_000, 9, np.uint8)
    raised[[0, 1_023_999, 1_024_000, 2_499_999]] = [0, 18, 10, 8]
    streams = EliasStreams(["w"], [raised.size], 9)
    packed = streams.pack(raised)
    assert packed.size < 60
    assert np.array_equal(streams.unpack(packed), raised)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("levels", [1, 7, 127])
def test_both_codings_carry_the_same_levels(levels: int, norm: Norm) -> None:
    x = normal(20_000)
    fixed, elias = (one_layer(20_000, levels, 256, norm, coding) for coding in ("fixed", "elias"))
    assert torch.equal(fixed.decode(fixed.encode(x, KEY)), elias.decode(elias.encode(x, KEY)))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 7, 511, 512, 513, 8192, 9000]),
    st.integers(1, 127),
    st.sampled_from([1, 64, 512, 8192]),
    st.sampled_from(NORMS),
    st.floats(-37, 36),
)
def test_each_element_goes_to_a_level_beside_it(
    size: int, levels: int, bucket: int, norm: Norm, exponent: float
) -> None:
    codec = one_layer(size, levels, bucket, norm)
    x = (normal(size, levels).double().clamp(-3, 3) * 10**exponent).float()
    decoded = codec.decode(codec.encode(x, KEY)).double().numpy()
    step = norms_of(x, bucket, norm) / levels
    assert (np.abs(decoded - x.double().numpy()) <= step * (1 + 1e-6) + 2.0**-148).all()
    assert (decoded * x.numpy() >= 0).all()


@pytest.mark.parametrize("norm", NORMS)
def test_unbiased(norm: Norm) -> None:
    size, levels, draws = 3000, 3, 1000
    x, codec, total = normal(size), one_layer(size, levels, 256, norm), np.zeros(size)
    for step in range(draws):
        total += codec.decode(codec.encode(x, Key(0, 0, step))).numpy()
    values = x.double().numpy()
    step_size = norms_of(x, 256, norm) / levels
    part = np.abs(values) / step_size % 1
    deviation = step_size * np.sqrt(part * (1 - part) / draws)
    certain = (part < 1e-2) | (part > 1 - 1e-2)  # too few events for a normal law
    z = (total / draws - values)[~certain] / deviation[~certain]
    assert abs(z.mean()) < 5 / np.sqrt(size)
    assert abs(z.std() - 1) < 0.07
    assert np.abs(z).max() < 6


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("levels", [1, 7, 22])
def test_the_error_is_the_theorys_and_within_the_papers_bound(norm: Norm, levels: int) -> None:
    """E|q - x|^2 = sum of step^2 f (1 - f), f the place between two levels; lemma 3.1 bounds it for Euclidean norms."""
    size, bucket = 600_000, 512
    x, codec = normal(size), one_layer(size, levels, bucket, norm)
    error = float((codec.decode(codec.encode(x, KEY)) - x).double().square().sum())
    step = norms_of(x, bucket, norm) / levels
    part = np.abs(x.double().numpy()) / step % 1
    assert error == pytest.approx(float((step**2 * part * (1 - part)).sum()), rel=0.01)
    if norm == "euclidean":
        bound = min(bucket / levels**2, math.sqrt(bucket) / levels)
        assert error <= bound * float(x.double().square().sum())


def test_elias_codes_keep_what_the_paper_promises() -> None:
    """Corollary 3.3: with s = sqrt(d) levels of the Euclidean norm, 2.8 bits an element and a norm."""
    size = 512 * 400
    codec = one_layer(size, levels=round(math.sqrt(512)), norm="euclidean", coding="elias")
    norms, _, levels = codec.encode(normal(size), KEY)
    assert norms.nbytes == 4 * 400
    assert 8 * levels.nbytes / size <= 2.8


@pytest.mark.parametrize("norm", NORMS)
def test_huge_and_tiny_buckets_keep_their_statistics(norm: Norm) -> None:
    for factor in (1e-44, 1e-40, 1e-30, 1e30, 1e38):
        x = (normal(51_200).clamp(-3, 3).double() * factor).float()
        decoded = one_layer(51_200, 7, 512, norm).decode(one_layer(51_200, 7, 512, norm).encode(x, KEY)).double()
        step = norms_of(x, 512, norm) / 7
        part = np.abs(x.double().numpy()) / step % 1
        deviation = math.sqrt((step**2 * part * (1 - part)).sum())
        rounding = 51_200 * 2.0**-150  # where a level is no multiple of the smallest float32
        assert abs(float((decoded - x.double()).sum())) < 5 * deviation + rounding


@pytest.mark.parametrize("distance", [1, 2, 255, 256, 512, 8192])
def test_elements_draw_independently_of_each_other(distance: int) -> None:
    size = 400_000
    x = torch.full((size,), 0.5)
    x[::512] = 1.0  # the norm of each bucket
    up = (one_layer(size, levels=1).decode(one_layer(size, levels=1).encode(x, KEY)) > 0).double().numpy() - 0.5
    up[::512] = 0
    assert abs((up[distance:] * up[:-distance]).mean()) < 5 * 0.25 / np.sqrt(size)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_norm_from_the_wire_is_finite_and_not_negative(value: float) -> None:
    codec = one_layer(9)
    message = codec.encode(normal(9), KEY)
    message[0][0] = value
    with pytest.raises(CodecError, match=r"layer w\.weight: a bucket's norm"):
        codec.decode(message)


def test_a_level_beyond_the_last_is_refused() -> None:
    codec = one_layer(8)
    message = codec.encode(normal(8), KEY)
    message[2][:] = 255  # 15, where 14 stands for +7
    with pytest.raises(CodecError, match=r"layer w\.weight: a level beyond -7 .. 7"):
        codec.decode(message)


@pytest.mark.parametrize("options", [{"levels": 0}, {"levels": 128}, {"bucket": 0}, {"bucket": 100}, {"bucket": 16384}])
def test_options_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(CodecError, match=r"levels|bucket"):
        one_layer(3, **options)
