"""Ternary with a scale for every block: the block is measured, coded and fed back while it lies in the first cache.

A block is that of `testbed.codecs.kernels`, 5 segments of 1,024 elements, 20 KB. Memory is gone over once, where a
scale for a whole layer takes two passes.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import F32, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import abs_bits, bits_of, float_of, larger
from testbed.codecs.kernels.planar import SEGMENT
from testbed.codecs.kernels.ternary import DRAW_RANGE, TRITS, choose_block, draw_block, kept_of, unpack_block
from testbed.codecs.kernels.threads import CHUNK, in_chunks
from testbed.codecs.kernels.vectors import HIGH_BITS, INFINITY_BITS, LOW_BITS

BLOCK = TRITS * SEGMENT
_NONE, _INFINITY = np.uint32(0), np.uint32(INFINITY_BITS)


def draw(x: np.ndarray, trits: np.ndarray, scales: np.ndarray, clip: np.float32, key: np.uint32) -> bool:
    """Ternarize a layer at random into its run, each block on its own scale; see `draw_chunk`."""

    def code(start: int, stop: int) -> bool:
        run, blocks = _of(start, stop)
        return draw_chunk(x[start:stop], trits[run], scales[blocks], run.start, clip, key)

    return all(in_chunks(code, x.size))


def feed_back(x: np.ndarray, residual: np.ndarray, trits: np.ndarray, scales: np.ndarray) -> bool:
    """Send the ternary of a layer of x + residual and keep in `residual` what is left; see `feed_back_chunk`."""

    def code(start: int, stop: int) -> bool:
        run, blocks = _of(start, stop)
        return feed_back_chunk(x[start:stop], residual[start:stop], trits[run], scales[blocks])

    return all(in_chunks(code, x.size))


def unpack(trits: np.ndarray, y: np.ndarray, scales: np.ndarray) -> None:
    """Write a layer: 0, scale or -scale of its block for each digit of its run."""

    def spread(start: int, stop: int) -> None:
        run, blocks = _of(start, stop)
        unpack_chunk(trits[run], y[start:stop], scales[blocks])

    in_chunks(spread, y.size)


def _of(start: int, stop: int) -> tuple[slice, slice]:
    """The bytes and the blocks of a chunk of a layer."""
    first, last = start // BLOCK, -(-stop // BLOCK)
    return slice(first * SEGMENT, last * SEGMENT), slice(first, last)


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _moments(x: Any, n: int) -> Any:
    """(sum, sum of squares, bits of the largest magnitude) of 5 segments of n elements."""
    total, squares, largest = 0.0, 0.0, _NONE
    x0, x1, x2, x3, x4 = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n : 4 * n], x[4 * n : 5 * n]
    for j in range(n):
        a, b, c, d, e = x0[j], x1[j], x2[j], x3[j], x4[j]
        total += np.float64(((a + b) + (c + d)) + e)
        squares += np.float64(((a * a + b * b) + (c * c + d * d)) + e * e)
        high = larger(larger(abs_bits(a), abs_bits(b)), larger(abs_bits(c), abs_bits(d)))
        largest = larger(largest, larger(high, abs_bits(e)))
    return total, squares, largest


@njit(inline="always")
def _power(largest: Any) -> Any:
    """The power of two that brings a magnitude with these bits near 1, as far as a factor can."""
    exponent = 127 - int(largest >> np.uint32(23))
    return np.float32(2.0 ** float(min(max(exponent, -126), 126)))


@kernel(
    (read_only(F32), writable(U8), writable(F32), I64, F32, U32),
    fastmath={"reassoc", "contract"},
)
def draw_chunk(x: np.ndarray, out: np.ndarray, scales: np.ndarray, first: int, clip: float, key: int) -> bool:
    """Ternarize x at random, each block on its own scale, and pack it as `ternary.pack_chunk` does.

    Parameters
    ----------
    x : float32 [n]; out : uint8 [ceil(n / 5)]; scales : float32 [ceil(n / 5120)]
    first : index of out[0] within the layer's run
    clip : in standard deviations of the block, 0 for none
    key : 32 bits

    Returns
    -------
    Whether all values are finite; if not, `out` is of no use.
    """
    scratch = np.zeros(BLOCK, np.float32)
    finite = True
    for k in range(scales.size):
        part = x[k * BLOCK : (k + 1) * BLOCK]
        n = (part.size + TRITS - 1) // TRITS
        if part.size < TRITS * n:
            scratch[: part.size] = part
            scratch[part.size : TRITS * n] = 0.0
            part = scratch[: TRITS * n]
        total, squares, largest = _moments(part, n)
        finite = finite and largest < _INFINITY
        power = np.float32(1.0)
        if largest != _NONE and (largest < LOW_BITS or largest > HIGH_BITS):  # measure again where squares are in range
            power = _power(largest)
            scratch[: part.size] = part * power
            part = scratch[: part.size]
            total, squares, largest = _moments(part, n)
        count = min(BLOCK, x.size - k * BLOCK)
        top = float_of(largest)
        mean_square, mean = squares / count, total / count
        variance = mean_square - mean * mean
        limit = top
        if clip > 0 and variance > 1e-6 * mean_square:  # otherwise nothing but rounding is left of it
            limit = np.float32(min(clip * sqrt(variance), np.float64(top)))
        scales[k] = limit / power
        inverse = np.float32(DRAW_RANGE / np.float64(limit)) if limit > 0 else np.float32(0.0)
        # A draw at or above the scale succeeds anyway: clipping is implied.
        bytes_ = out[k * SEGMENT : k * SEGMENT + n]
        draw_block(part, bytes_, n, first + k * SEGMENT, inverse, inverse * limit, False, key)
    return finite


@njit(inline="always")
def _add_block(x: Any, residual: Any, count: int) -> Any:
    """residual += x; returns (sum of magnitudes, bits of the largest)."""
    total, largest = 0.0, _NONE
    for j in range(count):
        value = residual[j] + x[j]
        residual[j] = value
        bits = abs_bits(value)
        total += np.float64(float_of(bits))
        largest = larger(largest, bits)
    return total, largest


@njit(inline="always")
def _subtract_sent(residual: Any, threshold: Any, alpha: Any) -> None:
    for j in range(residual.size):
        value = residual[j]
        sent = alpha if value > threshold else (-alpha if value < -threshold else np.float32(0.0))
        residual[j] = value - sent


@kernel((read_only(F32), writable(F32), writable(U8), writable(F32)), fastmath={"reassoc", "contract"})
def feed_back_chunk(x: np.ndarray, residual: np.ndarray, out: np.ndarray, scales: np.ndarray) -> bool:
    """Send the ternary of x + residual, each block on its own scale, and keep the rest, in one pass over memory.

    Delta = 0.7 * mean|x + residual| of the block; what is above it becomes +-alpha, the mean of these magnitudes.

    Returns
    -------
    Whether all values are finite; if not, residual holds x + residual of some blocks.
    """
    scratch = np.zeros(BLOCK, np.float32)
    finite = True
    for k in range(scales.size):
        rest = residual[k * BLOCK : (k + 1) * BLOCK]
        n = (rest.size + TRITS - 1) // TRITS
        total, largest = _add_block(x[k * BLOCK : (k + 1) * BLOCK], rest, rest.size)
        finite = finite and largest < _INFINITY
        threshold = np.float32(0.7 * total / rest.size)
        count, kept = kept_of(rest, threshold)
        alpha = np.float32(kept / max(count, 1))
        scales[k] = alpha
        bytes_ = out[k * SEGMENT : k * SEGMENT + n]
        if rest.size == TRITS * n:
            choose_block(rest, bytes_, n, threshold)
        else:
            scratch[: rest.size] = rest
            scratch[rest.size : TRITS * n] = 0.0
            choose_block(scratch[: TRITS * n], bytes_, n, threshold)
        _subtract_sent(rest, threshold, alpha)
    return finite


@kernel((read_only(U8), writable(F32), read_only(F32)))
def unpack_chunk(packed: np.ndarray, out: np.ndarray, scales: np.ndarray) -> None:
    """Write 0, scale or -scale of its block for each packed digit."""
    scratch = np.empty(BLOCK, np.float32)
    for k in range(scales.size):
        part = out[k * BLOCK : (k + 1) * BLOCK]
        n = (part.size + TRITS - 1) // TRITS
        bytes_ = packed[k * SEGMENT : k * SEGMENT + n]
        if part.size == TRITS * n:
            unpack_block(bytes_, part, n, bits_of(scales[k]))
        else:
            unpack_block(bytes_, scratch, n, bits_of(scales[k]))
            part[:] = scratch[: part.size]


assert CHUNK % BLOCK == 0  # a chunk begins at a block
