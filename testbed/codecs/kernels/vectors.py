"""What all codecs ask of a vector or a layer of it. The rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import F32, kernel, read_only
from testbed.codecs.kernels.lanes import abs_bits, larger
from testbed.codecs.kernels.planar import SEGMENT
from testbed.codecs.kernels.threads import in_chunks

INFINITY_BITS = 0x7F800000  # of a float32; finite magnitudes have less, NaNs more
LOW_BITS, HIGH_BITS = np.uint32(0x2B800000), np.uint32(0x5D800000)  # of 2^-40 and 2^60: squares stay in range between
_NONE = np.uint32(0)


def host(x: np.ndarray) -> np.ndarray:
    """The values as an array: on the CPU they are one."""
    return x


def write(values: np.ndarray, x: np.ndarray) -> None:
    """x = values."""
    x[:] = values


def largest_bits(x: np.ndarray) -> int:
    """The bits of the largest magnitude, `INFINITY_BITS` or more where one is not finite; 0 of nothing."""
    return int(max(in_chunks(lambda start, stop: largest_bits_chunk(x[start:stop]), x.size), default=0))


def moments(x: np.ndarray) -> tuple[float, float, int]:
    """(sum, sum of squares, bits of the largest magnitude); sums of finite values neither overflow nor vanish."""
    parts = in_chunks(lambda start, stop: moments_chunk(x[start:stop]), x.size)
    largest = max((part[2] for part in parts), default=0)
    if 0 < largest <= LOW_BITS or HIGH_BITS <= largest < INFINITY_BITS:
        return *moments_wide(x), largest
    return sum(part[0] for part in parts), sum(part[1] for part in parts), largest


def moments_wide(x: np.ndarray) -> tuple[float, float]:
    """(sum, sum of squares) in float64 throughout: without the rounding of `moments`, and slower."""
    parts = in_chunks(lambda start, stop: moments_wide_chunk(x[start:stop]), x.size)
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


# --- chunks -----------------------------------------------------------------------------------------------------


@kernel((read_only(F32),))
def largest_bits_chunk(x: np.ndarray) -> np.uint32:
    """Return the bits of the largest magnitude; a NaN's or an infinity's are `INFINITY_BITS` or more."""
    largest = _NONE
    for i in range(x.size):
        largest = larger(largest, abs_bits(x[i]))
    return largest


@njit(inline="always")
def _moments_block(x: Any, n: int) -> Any:
    total, squares, largest = 0.0, 0.0, _NONE
    x0, x1, x2, x3 = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n : 4 * n]
    x4, x5, x6, x7 = x[4 * n : 5 * n], x[5 * n : 6 * n], x[6 * n : 7 * n], x[7 * n : 8 * n]
    for j in range(n):
        a, b, c, d, e, f, g, h = x0[j], x1[j], x2[j], x3[j], x4[j], x5[j], x6[j], x7[j]
        total += np.float64(((a + b) + (c + d)) + ((e + f) + (g + h)))
        squares += np.float64(((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h)))
        low = larger(larger(abs_bits(a), abs_bits(b)), larger(abs_bits(c), abs_bits(d)))
        high = larger(larger(abs_bits(e), abs_bits(f)), larger(abs_bits(g), abs_bits(h)))
        largest = larger(largest, larger(low, high))
    return total, squares, largest


@kernel((read_only(F32),), fastmath={"reassoc", "contract"})
def moments_chunk(x: np.ndarray) -> tuple[float, float, np.uint32]:
    """Return (sum, sum of squares, bits of the largest magnitude) of x, at the speed of memory.

    Eight values are added in float32, these sums in float64. Squares leave float32's range when the largest
    magnitude does not lie within 2^-40 .. 2^60: `moments_wide_chunk` is for those.
    """
    full = 8 * SEGMENT
    blocks = x.size // full
    total, squares, largest = 0.0, 0.0, _NONE
    for k in range(blocks):
        s, q, top = _moments_block(x[k * full : (k + 1) * full], SEGMENT)
        total, squares, largest = total + s, squares + q, larger(largest, top)
    for i in range(blocks * full, x.size):
        value = np.float64(x[i])
        total += value
        squares += value * value
        largest = larger(largest, abs_bits(x[i]))
    return total, squares, largest


@kernel((read_only(F32),), fastmath={"reassoc", "contract"})
def moments_wide_chunk(x: np.ndarray) -> tuple[float, float]:
    """Return (sum, sum of squares) of x in float64 throughout: no square overflows or vanishes."""
    total, squares = 0.0, 0.0
    for i in range(x.size):
        value = np.float64(x[i])
        total += value
        squares += value * value
    return total, squares
