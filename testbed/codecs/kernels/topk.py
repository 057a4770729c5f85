"""The largest magnitudes of a layer; the rules are those of `testbed.codecs.kernels`.

A threshold is estimated from a sample, low enough to let a few more pass than are wanted; those are ranked exactly.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np

from testbed.codecs.buffers import Allocate
from testbed.codecs.kernels.compiled import I64, U32, kernel, read_only, writable
from testbed.codecs.kernels.sparse import gather, select
from testbed.codecs.kernels.vectors import INFINITY_BITS

SAMPLE = 1 << 14  # elements of a large layer that are looked at for an estimate
RANKED_WHOLE = 1 << 13  # elements of a layer below which a sample saves nothing
_DEVIATIONS = 4  # how far the estimate is off the wanted rank, in its standard deviations, so that few retries happen
_ABS, _INFINITY, _NOT_ZERO = np.uint32(0x7FFFFFFF), np.uint32(INFINITY_BITS), np.uint32(1)


def largest(x: np.ndarray, wanted: int, allocate: Allocate) -> tuple[np.ndarray, int]:
    """The places (uint32, increasing) of the `wanted` largest magnitudes, the first of equal ones, never of zeros.

    Returns
    -------
    (places, bits of the largest magnitude, 0 of nothing)
    """
    low, high = _estimate(x, wanted, allocate)
    places = select(x, low, allocate)
    if places.size < wanted and low > _NOT_ZERO:
        places, high = select(x, _NOT_ZERO, allocate), _INFINITY
    bits = _magnitudes(x, places, allocate)
    top = int(bits.max(initial=0))
    if places.size > wanted:
        keep_largest(places, bits, _threshold(bits, wanted, high, allocate), wanted)
    return places[:wanted], top


def _estimate(x: np.ndarray, wanted: int, allocate: Allocate) -> tuple[np.uint32, np.uint32]:
    """The bits of two magnitudes: very likely fewer than are wanted reach the second, and more the first."""
    if x.size < RANKED_WHOLE:
        return _NOT_ZERO, _INFINITY
    bits = _magnitudes(x, _sample(x.size), allocate)
    expected = wanted / x.size * bits.size
    margin = _DEVIATIONS * sqrt(expected) + _DEVIATIONS
    last = bits.size - 1
    low, high = last - int(expected + margin), last - max(int(expected - margin), 0)
    bits.partition([max(low, 0), high])
    return (
        max(bits[low], _NOT_ZERO) if low >= 0 else _NOT_ZERO,
        bits[high] if high < last else _INFINITY,
    )


@lru_cache(maxsize=256)
def _sample(size: int) -> np.ndarray:
    """Places of a sample of a layer, one drawn from each of equal stretches; the same at every call."""
    count = min(SAMPLE, size // 4)
    starts = np.arange(count, dtype=np.int64) * size // count
    drawn = np.random.default_rng(size).integers(0, size // count, count)
    return (starts + drawn).astype(np.uint32)


def _magnitudes(x: np.ndarray, places: np.ndarray, allocate: Allocate) -> np.ndarray:
    """The bits of |x[places]|, which order magnitudes as numbers do; free to be written to."""
    bits = gather(x, places, allocate).view(np.uint32)
    return np.bitwise_and(bits, _ABS, out=bits)


def _threshold(bits: np.ndarray, wanted: int, high: np.uint32, allocate: Allocate) -> np.uint32:
    """The smallest of the `wanted` largest of more bits than that.

    Only those below `high` are ranked, unless there are too many of the others.
    """
    near = allocate(bits.size, np.uint32)
    fewer = near[: below(bits, high, near)]
    missing = wanted - (bits.size - fewer.size)
    if missing <= 0:
        near[:] = bits
        fewer, missing = near, wanted
    fewer.partition(fewer.size - missing)
    return fewer[-missing]


@kernel((read_only(U32), U32, writable(U32)))
def below(bits: np.ndarray, limit: int, out: np.ndarray) -> int:
    """Write those of `bits` that are below the limit; return how many."""
    count = 0
    for i in range(bits.size):
        out[count] = bits[i]
        count += 1 if bits[i] < limit else 0
    return count


@kernel((writable(U32), read_only(U32), U32, I64))
def keep_largest(places: np.ndarray, bits: np.ndarray, threshold: int, wanted: int) -> None:
    """Move to the front the `wanted` places whose bits are the largest, in their order, of equal ones the first.

    Parameters
    ----------
    threshold : the smallest bits that are kept, of the place that is `wanted`-th by size
    """
    equal, count = wanted, 0
    for i in range(bits.size):
        equal -= 1 if bits[i] > threshold else 0
    for i in range(bits.size):
        if bits[i] > threshold or (bits[i] == threshold and equal > 0):
            equal -= 1 if bits[i] == threshold else 0
            places[count] = places[i]
            count += 1
