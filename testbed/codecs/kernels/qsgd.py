"""The hot loops of QSGD; the rules are those of `testbed.codecs.kernels`.

A level l, -s .. s, is kept raised, as l + s, in a byte.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numba import njit, types

from testbed.codecs.kernels.compiled import F32, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import abs_bits, add, and_, bits_of, float_of, larger, low_byte, shr, sub, xor
from testbed.codecs.kernels.planar import PLANES, SEGMENT, hashed, pack_planes, unpack_planes
from testbed.codecs.kernels.threads import CHUNK, in_chunks
from testbed.codecs.kernels.vectors import INFINITY_BITS

BLOCK = PLANES * SEGMENT  # elements; buckets are parts of it
MAX_LEVELS = 127

_0, _8, _24, _31 = (np.uint32(n) for n in (0, 8, 24, 31))
_INFINITY = np.uint32(INFINITY_BITS)
UNIT = float(1 << 24)  # a level in the fixed-point numbers that are rounded at random
LARGEST = 3.4028234663852886e38  # of a float32


def quantize(
    x: np.ndarray, raised: np.ndarray, norms: np.ndarray, levels: int, bucket: int, euclidean: bool, key: np.uint32
) -> bool:
    """Quantize a layer's buckets at random; see `quantize_chunk`."""

    def code(start: int, stop: int) -> bool:
        here = norms[start // bucket :]
        return quantize_chunk(x[start:stop], raised[start:stop], here, levels, bucket, euclidean, start, key)

    return all(in_chunks(code, x.size))


def pack(
    x: np.ndarray,
    planes: np.ndarray,
    norms: np.ndarray,
    levels: int,
    bucket: int,
    euclidean: bool,
    key: np.uint32,
    bits: int,
) -> bool:
    """`quantize`, and pack the raised levels into bit planes."""

    def code(start: int, stop: int) -> bool:
        here, out = norms[start // bucket :], planes[bits * start // PLANES :]
        return pack_chunk(x[start:stop], out, here, levels, bucket, euclidean, start, key, bits)

    return all(in_chunks(code, x.size))


def scale(raised: np.ndarray, y: np.ndarray, norms: np.ndarray, levels: int, bucket: int) -> None:
    """Write a layer: (raised - levels) * norm / levels, made in float64."""
    in_chunks(
        lambda start, stop: scale_chunk(raised[start:stop], y[start:stop], norms[start // bucket :], levels, bucket),
        y.size,
    )


def unpack(planes: np.ndarray, y: np.ndarray, norms: np.ndarray, levels: int, bucket: int, bits: int) -> int:
    """`scale` of packed levels; return the largest raised level, which must not be above 2 * levels."""

    def spread(start: int, stop: int) -> int:
        packed, here = planes[bits * start // PLANES :], norms[start // bucket :]
        return unpack_chunk(packed, y[start:stop], here, levels, bucket, bits)

    return max(in_chunks(spread, y.size), default=0)


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _norm(x: Any, euclidean: Any) -> Any:
    """The scale of a bucket, infinite where a value is not finite; a float32 at least as large as every |x|."""
    largest = _0
    for i in range(x.size):
        largest = larger(largest, abs_bits(x[i]))
    if largest >= _INFINITY:
        return np.float32(np.inf)
    if not euclidean:
        return float_of(largest)
    squares = 0.0
    for i in range(x.size):
        squares += np.float64(x[i]) * np.float64(x[i])
    return np.float32(max(min(sqrt(squares), LARGEST), np.float64(float_of(largest))))


@njit(inline="always")
def _draw(x: Any, raised: Any, levels: Any, norm: Any, first: Any, key: Any) -> None:
    """Round |x| * levels / norm up or down at random, in fixed point."""
    factor = levels * UNIT / np.float64(norm) if norm > 0 else 0.0
    middle = np.uint32(levels)
    for i in range(x.size):
        bits = bits_of(x[i])
        size = np.uint32(np.int32(np.float64(float_of(and_(bits, np.uint32(0x7FFFFFFF)))) * factor))
        level = shr(add(size, shr(hashed(add(np.uint32(first), np.uint32(i)), key), _8)), _24)
        negative = sub(_0, shr(bits, _31))
        raised[i] = low_byte(add(middle, sub(xor(level, negative), negative)))


@njit(inline="always")
def _quantize(x: Any, raised: Any, norms: Any, levels: Any, bucket: Any, euclidean: Any, first: Any, key: Any) -> bool:
    finite = True
    for b in range((x.size + bucket - 1) // bucket):
        part = x[b * bucket : min((b + 1) * bucket, x.size)]
        norm = _norm(part, euclidean)
        norms[b] = norm
        finite = finite and norm < np.inf
        _draw(part, raised[b * bucket : b * bucket + part.size], levels, norm, first + b * bucket, key)
    return finite


@kernel((read_only(F32), writable(U8), writable(F32), I64, I64, types.boolean, I64, U32), fastmath={"reassoc"})
def quantize_chunk(
    x: np.ndarray,
    raised: np.ndarray,
    norms: np.ndarray,
    levels: int,
    bucket: int,
    euclidean: bool,
    first: int,
    key: int,
) -> bool:
    """Quantize buckets at random; whether all values are finite.

    Parameters
    ----------
    x : float32 [n]; raised : uint8 [n]; norms : float32 [ceil(n / bucket)]
    levels : s, at most `MAX_LEVELS`
    bucket : a power of two, at most `BLOCK`
    euclidean : norms are Euclidean, otherwise the largest magnitudes
    first : index of x[0] within its layer: the counter of the random numbers
    key : 32 bits, see `testbed.codecs.base.Key`
    """
    return _quantize(x, raised, norms, levels, bucket, euclidean, first, key)


@kernel((read_only(F32), writable(U8), writable(F32), I64, I64, types.boolean, I64, U32, I64), fastmath={"reassoc"})
def pack_chunk(
    x: np.ndarray,
    out: np.ndarray,
    norms: np.ndarray,
    levels: int,
    bucket: int,
    euclidean: bool,
    first: int,
    key: int,
    bits: int,
) -> bool:
    """`quantize_chunk`, and pack the raised levels as `planar.pack_chunk` does."""
    raised = np.empty(BLOCK, np.uint8)
    finite = True
    for start in range(0, x.size, BLOCK):
        part = x[start : start + BLOCK]
        n = (part.size + PLANES - 1) // PLANES
        raised[part.size : n * PLANES] = 0
        here = norms[start // bucket :]
        finite = _quantize(part, raised, here, levels, bucket, euclidean, first + start, key) and finite
        pack_planes(raised, out[bits * start // PLANES :], n, bits)
    return finite


@njit(inline="always")
def _scale(raised: Any, out: Any, norms: Any, levels: Any, bucket: Any) -> None:
    for b in range((out.size + bucket - 1) // bucket):
        step = np.float64(norms[b]) / levels
        part = out[b * bucket : min((b + 1) * bucket, out.size)]
        here = raised[b * bucket : b * bucket + part.size]
        for i in range(part.size):
            part[i] = np.float32(np.float64(np.int32(here[i]) - np.int32(levels)) * step)


@kernel((read_only(U8), writable(F32), read_only(F32), I64, I64))
def scale_chunk(raised: np.ndarray, out: np.ndarray, norms: np.ndarray, levels: int, bucket: int) -> None:
    """Write (raised - levels) * norm / levels, made in float64."""
    _scale(raised, out, norms, levels, bucket)


@kernel((read_only(U8), writable(F32), read_only(F32), I64, I64, I64))
def unpack_chunk(packed: np.ndarray, out: np.ndarray, norms: np.ndarray, levels: int, bucket: int, bits: int) -> int:
    """`scale_chunk` of packed levels; return the largest raised level, which must not be above 2 * levels."""
    raised = np.empty(BLOCK, np.uint8)
    largest = np.uint8(0)
    for start in range(0, out.size, BLOCK):
        part = out[start : start + BLOCK]
        unpack_planes(packed[bits * start // PLANES :], raised, (part.size + PLANES - 1) // PLANES, bits)
        for i in range(part.size):
            largest = larger(largest, raised[i])
        _scale(raised, part, norms[start // bucket :], levels, bucket)
    return int(largest)


assert CHUNK % BLOCK == 0  # a chunk begins at a bucket and at a block
