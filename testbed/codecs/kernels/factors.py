"""The hot loops of quantized factors; the rules are those of `testbed.codecs.kernels`.

A signal's dither is a function of (key, index of the element), so that sender and receiver draw the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.buffers import Allocate
from testbed.codecs.kernels.compiled import F32, F64, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import shr
from testbed.codecs.kernels.planar import hashed
from testbed.codecs.kernels.vectors import moments_wide_chunk

_8 = np.uint32(8)
LARGEST = float(np.finfo(np.float32).max)


def nonzero(x: np.ndarray) -> np.ndarray:
    """The elements of a signal that are not zero, in their order."""
    kept = np.empty(x.size + 1, np.float32)  # one more than can be kept: each element is written before it is known
    return kept[: keep_nonzero(x, kept)]


def extremes(x: np.ndarray) -> tuple[float, float]:
    """(smallest, largest) of at least one finite value."""
    return float(x.min()), float(x.max())


def sums(x: np.ndarray) -> tuple[float, float]:
    """(sum, sum of squares), in float64."""
    return moments_wide_chunk(x)


def bin_sums(x: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many elements lie between each two thresholds, zeros left out, and their sums.

    Returns
    -------
    (int64 [thresholds + 1], float64 [thresholds + 1])
    """
    counts, totals = np.zeros(thresholds.size + 1, np.int64), np.zeros(thresholds.size + 1)
    add_bin_sums(x, thresholds, counts, totals)
    return counts, totals


def classify(x: np.ndarray, thresholds: np.ndarray, allocate: Allocate) -> np.ndarray:
    """0 for each zero, for others one more than the number of thresholds they are above: uint8 [n]."""
    symbols = allocate(x.size, np.uint8)
    classify_into(x, thresholds, symbols)
    return symbols


def lowered(symbols: np.ndarray) -> np.ndarray:
    """Each symbol less one, but for zeros: in place, and returned."""
    symbols -= (symbols > 0).view(np.uint8)
    return symbols


def points_of(symbols: np.ndarray, points: np.ndarray, allocate: Allocate) -> np.ndarray:
    """The point of each symbol, of which there is one for every symbol: float32 [n]."""
    values = allocate(symbols.size, np.float32)
    points_into(symbols, points, values)
    return values


def dither(x: np.ndarray, scale: float, levels: int, key: np.uint32, allocate: Allocate) -> np.ndarray:
    """`levels` plus the index of the bin that x / scale + u lies in: uint8 [n]."""
    symbols = allocate(x.size, np.uint8)
    dither_into(x, symbols, scale, levels, key)
    return symbols


def undither(symbols: np.ndarray, scale: float, levels: int, key: np.uint32, allocate: Allocate) -> np.ndarray:
    """scale * (index - u) of each symbol, within float32's range: float32 [n]."""
    values = allocate(symbols.size, np.float32)
    undither_into(symbols, values, scale, levels, key)
    return values


# --- loops ------------------------------------------------------------------------------------------------------


@kernel((read_only(F32), writable(F32)))
def keep_nonzero(x: np.ndarray, kept: np.ndarray) -> int:
    """Write what is not zero, one after the other; returns how many that are."""
    count = 0
    for i in range(x.size):
        kept[count] = x[i]
        count += x[i] != 0
    return count


@kernel((read_only(F32), read_only(F32), writable(I64), writable(F64)))
def add_bin_sums(x: np.ndarray, thresholds: np.ndarray, counts: np.ndarray, sums: np.ndarray) -> None:
    """Add to counts and sums [thresholds + 1] those of the elements between each two thresholds, zeros left out."""
    for i in range(x.size):
        value = x[i]
        if value != 0:
            k = 0
            for j in range(thresholds.size):
                k += value > thresholds[j]
            counts[k] += 1
            sums[k] += np.float64(value)


@kernel((read_only(F32), read_only(F32), writable(U8)))
def classify_into(x: np.ndarray, thresholds: np.ndarray, symbols: np.ndarray) -> None:
    """Write 0 for each zero, for others one more than the number of thresholds they are above."""
    for i in range(x.size):
        value = x[i]
        above = 0
        for j in range(thresholds.size):
            above += value > thresholds[j]
        symbols[i] = 0 if value == 0 else above + 1


@kernel((read_only(U8), read_only(F32), writable(F32)))
def points_into(symbols: np.ndarray, points: np.ndarray, out: np.ndarray) -> None:
    """Write the point of each symbol; there is one for every symbol."""
    for i in range(symbols.size):
        out[i] = points[symbols[i]]


@njit(inline="always")
def _dither(index: Any, key: Any) -> Any:
    """Uniform over (-1/2, 1/2) in steps of 2^-24."""
    return (np.float64(shr(hashed(np.uint32(index), key), _8)) + 0.5) * 2.0**-24 - 0.5


@kernel((read_only(F32), writable(U8), F64, I64, U32))
def dither_into(x: np.ndarray, symbols: np.ndarray, scale: float, levels: int, key: int) -> None:
    """Write `levels` plus the index of the bin that x / scale + u lies in; |x| is at most levels * scale."""
    for i in range(x.size):
        index = np.rint(np.float64(x[i]) / scale + _dither(i, key))
        symbols[i] = np.int64(min(max(index, -levels), levels)) + levels


@kernel((read_only(U8), writable(F32), F64, I64, U32))
def undither_into(symbols: np.ndarray, out: np.ndarray, scale: float, levels: int, key: int) -> None:
    """Write scale * (index - u), see `dither_into`; what float32 cannot hold, as its largest number."""
    for i in range(symbols.size):
        value = scale * (np.float64(np.int64(symbols[i]) - levels) - _dither(i, key))
        out[i] = min(max(value, -LARGEST), LARGEST)
