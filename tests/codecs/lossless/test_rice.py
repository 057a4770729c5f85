"""Rice codes: every number comes back, in the bytes that theory says, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.codecs.lossless import rice
from testbed.errors import CodecError

NUMBERS = st.lists(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 500), st.integers(0, 2**32 - 1)), max_size=40))


def arrays(sections: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array([number for section in sections for number in section], np.uint32)
    return numbers, np.array([len(section) for section in sections], np.int64)


@given(NUMBERS)
def test_every_number_comes_back(sections: list[list[int]]) -> None:
    numbers, counts = arrays(sections)
    assert np.array_equal(rice.unpack(rice.pack(numbers, counts), counts, "numbers"), numbers)


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=60))
def test_no_other_parameter_is_shorter(numbers: list[int]) -> None:
    packed = rice.pack(*arrays([numbers]))
    bits = [len(numbers) * (k + 1) + sum(number >> k for number in numbers) for k in range(32)]
    chosen = int(packed[0])
    assert bits[chosen] == min(bits)
    remainders = chosen * len(numbers)
    assert packed.size == 1 + -(-remainders // 8) + -(-(bits[chosen] - remainders) // 8)


def test_the_format_bit_by_bit() -> None:
    packed = rice.pack(*arrays([[5, 9, 2], [], [0, 1]]))
    # Parameters 2, 0, 0; remainders 1, 1, 2 in two bits each; quotients 1, 2, 0 and 0, 1 in unary.
    assert packed.tolist() == [2, 0, 0, 0b10_01_01, 0b0_1_1_100_10, 0b1]
    assert rice.unpack(packed, np.array([3, 0, 2]), "numbers").tolist() == [5, 9, 2, 0, 1]


@pytest.mark.parametrize("kept", [0.001, 0.01, 0.1, 0.25, 0.5])
def test_gaps_cost_little_more_than_their_entropy(kept: float) -> None:
    gaps = np.random.default_rng(0).geometric(kept, 100_000).astype(np.uint32) - np.uint32(1)
    entropy = -(np.log2(kept) + (1 - kept) / kept * np.log2(1 - kept))
    assert 8 * rice.pack(gaps, np.array([gaps.size])).size / gaps.size < 1.03 * entropy


def test_where_most_are_kept_the_gaps_are_a_bitmap() -> None:
    kept = np.random.default_rng(0).random(10_000) < 0.8
    kept[-1] = True
    gaps = np.diff(np.flatnonzero(kept), prepend=-1) - 1
    packed = rice.pack(gaps.astype(np.uint32), np.array([gaps.size]))
    assert packed[0] == 0
    assert np.array_equal(packed[1:], np.packbits(kept, bitorder="little"))


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 17, 10_000]))
def test_a_place_in_a_thousand_never_costs_more_than_12_bits(seed: int, clusters: int) -> None:
    """However the places lie: spread evenly, or all in a few clusters."""
    random = np.random.default_rng(seed)
    size, kept = 1_000_000, 1_000
    widths = random.integers(1, size // clusters, clusters)
    near = random.choice(clusters, 4 * kept) * (size // clusters) + random.integers(0, widths.max(), 4 * kept)
    places = np.unique(near)[:kept]
    gaps = np.diff(places, prepend=-1) - 1
    assert 8 * (rice.pack(gaps.astype(np.uint32), np.array([gaps.size])).size - 2) <= 12 * kept


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        ("text", [1]),
        (b"", [1]),
        (b"\x20\x01", [1]),  # a parameter of 32
        (b"\x00", [1]),  # no quotient
        (b"\x00\x00", [1]),  # a quotient without an end
        (b"\x00\x03", [1]),  # a second number
        (b"\x00\x01\x00", [1]),  # a byte too many
        (b"\x00\x01", [0]),  # a number too many
        (b"\x02\x05\x01", [1]),  # more bits of remainders than there are
        (b"\x1f\x00\x00\x00\x00\x04", [1]),  # 2 * 2^31
        (b"\x00\x01", [2**40]),
    ],
)
def test_what_is_no_code_is_refused(message: bytes | str, counts: list[int]) -> None:
    with pytest.raises(CodecError, match="numbers: "):
        rice.unpack(message, np.array(counts, np.int64), "numbers")
