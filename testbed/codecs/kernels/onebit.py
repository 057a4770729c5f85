"""The hot loops of 1-bit messages: signs, and the mean of each; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import F32, I64, U8, kernel, read_only, writable
from testbed.codecs.kernels.lanes import add, and_, bits_of, float_of, low_byte, or_, shl, shr, sub, xor
from testbed.codecs.kernels.planar import PLANES, SEGMENT
from testbed.codecs.kernels.threads import in_chunks

_0, _1, _2, _3, _4, _5, _6, _7, _31 = (np.uint32(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 31))
_SIGN, _ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)


def pack(x: np.ndarray, rest: np.ndarray | None, signs: np.ndarray, means: np.ndarray, length: int) -> None:
    """Pack the sign bits of a layer's columns of this length and find their means; see `pack_chunk`.

    Where there is a rest, x + rest is packed, and the rest becomes what the means leave of it.
    """

    def measure(start: int, stop: int) -> None:
        here, run, pairs = _columns(start, stop, length)
        if rest is None:
            pack_chunk(x[here], signs[run], means[pairs], length)
        else:
            pack_rest_chunk(x[here], rest[here], signs[run], means[pairs], length)

    in_chunks(measure, x.size)


def unpack(signs: np.ndarray, means: np.ndarray, y: np.ndarray, length: int) -> None:
    """Write a layer: the mean of its column and sign for each element."""

    def spread(start: int, stop: int) -> None:
        here, run, pairs = _columns(start, stop, length)
        unpack_chunk(signs[run], means[pairs], y[here], length)

    in_chunks(spread, y.size)


def _columns(start: int, stop: int, length: int) -> tuple[slice, slice, slice]:
    """The columns that begin in a chunk of a layer: their places in its elements, signs and means."""
    first, last, width = -(-start // length), -(-stop // length), -(-length // PLANES)
    return slice(first * length, last * length), slice(first * width, last * width), slice(2 * first, 2 * last)


@njit(inline="always")
def _count(x: Any, sums: Any) -> Any:
    """(sum of the values without a sign bit, sum of those with one, how many have one), with x among them."""
    bits = bits_of(x)
    signed = shr(bits, _31)
    mask = sub(_0, signed)
    positive = sums[0] + float_of(and_(bits, xor(mask, _ALL)))
    negative = sums[1] + float_of(and_(bits, mask))
    return positive, negative, add(sums[2], signed)


@njit(inline="always")
def _sum_signs(v: Any) -> Any:
    sums = np.float32(0), np.float32(0), _0
    for i in range(v.size):
        sums = _count(v[i], sums)
    return sums


@njit(inline="always")
def _add_sum_signs(x: Any, v: Any) -> Any:
    """`_sum_signs` of v + x, which v becomes."""
    sums = np.float32(0), np.float32(0), _0
    for i in range(v.size):
        value = v[i] + x[i]
        v[i] = value
        sums = _count(value, sums)
    return sums


@njit(inline="always")
def _sum_signs_wide(v: Any) -> Any:
    """The two sums in float64 throughout, which overflow for no finite values."""
    positive, negative = 0.0, 0.0
    for i in range(v.size):
        if bits_of(v[i]) >= _SIGN:
            negative += np.float64(v[i])
        else:
            positive += np.float64(v[i])
    return positive, negative


@njit(inline="always")
def _means(v: Any, positive: Any, negative: Any, negatives: Any) -> Any:
    """The means of the values without and with a sign bit, 0 where there are none; NaN where one is not finite."""
    if not positive - negative < np.inf:  # beyond float32
        positive, negative = _sum_signs_wide(v)
    return np.float32(positive / max(v.size - negatives, 1)), np.float32(negative / max(negatives, 1))


@njit(inline="always")
def _mean_of(signed: Any, positive: Any, different: Any) -> Any:
    """The mean that a sign, 0 or 1, stands for: `different` holds the bits in which the two means differ."""
    return float_of(xor(positive, and_(different, sub(_0, signed))))


@njit(inline="always")
def _sign(x: Any, place: Any) -> Any:
    return shl(shr(bits_of(x), _31), place)


@njit(inline="always")
def _sign_block(v: Any, out: Any, n: int) -> None:
    v0, v1, v2, v3 = v[:n], v[n : 2 * n], v[2 * n : 3 * n], v[3 * n : 4 * n]
    v4, v5, v6, v7 = v[4 * n : 5 * n], v[5 * n : 6 * n], v[6 * n : 7 * n], v[7 * n : 8 * n]
    for j in range(n):
        low = or_(or_(_sign(v0[j], _0), _sign(v1[j], _1)), or_(_sign(v2[j], _2), _sign(v3[j], _3)))
        high = or_(or_(_sign(v4[j], _4), _sign(v5[j], _5)), or_(_sign(v6[j], _6), _sign(v7[j], _7)))
        out[j] = low_byte(or_(low, high))


@njit(inline="always")
def _pack_signs(v: Any, out: Any, padded: Any) -> None:
    full = PLANES * SEGMENT
    blocks = v.size // full
    for k in range(blocks):
        _sign_block(v[k * full : (k + 1) * full], out[k * SEGMENT : (k + 1) * SEGMENT], SEGMENT)
    rest = v.size - blocks * full
    n = (rest + PLANES - 1) // PLANES
    if rest == PLANES * n:
        _sign_block(v[blocks * full :], out[blocks * SEGMENT :], n)
    else:
        padded[:rest] = v[blocks * full :]
        padded[rest : PLANES * n] = 0
        _sign_block(padded, out[blocks * SEGMENT :], n)


@kernel((read_only(F32), writable(U8), writable(F32), I64), fastmath={"reassoc"})
def pack_chunk(x: np.ndarray, out: np.ndarray, means: np.ndarray, length: int) -> None:
    """Pack the sign bits of columns and find the means of the values of each sign.

    Parameters
    ----------
    x : float32 [n], columns one after the other, each of `length` elements but for the last
    out : uint8, a run of ceil(length / 8) bytes a column, its blocks of 8 segments as in `planar.pack_chunk`
    means : float32 [columns, 2], flat: of the values without and with a sign bit; not finite where a value is not
    """
    width = (length + PLANES - 1) // PLANES
    padded = np.empty(PLANES * SEGMENT, np.float32)
    for c in range(means.size // 2):
        v = x[c * length : min((c + 1) * length, x.size)]
        positive, negative, negatives = 0.0, 0.0, np.int64(0)
        for start in range(0, v.size, SEGMENT):  # in float32 as far as its digits last
            plus, minus, signed = _sum_signs(v[start : start + SEGMENT])
            positive, negative, negatives = positive + plus, negative + minus, negatives + np.int64(signed)
        means[2 * c], means[2 * c + 1] = _means(v, positive, negative, negatives)
        _pack_signs(v, out[c * width :], padded)


@kernel((read_only(F32), writable(F32), writable(U8), writable(F32), I64), fastmath={"reassoc"})
def pack_rest_chunk(x: np.ndarray, rest: np.ndarray, out: np.ndarray, means: np.ndarray, length: int) -> None:
    """`pack_chunk` of x + rest, each column while it is in the cache; `rest` becomes what the means leave of it."""
    width = (length + PLANES - 1) // PLANES
    padded = np.empty(PLANES * SEGMENT, np.float32)
    for c in range(means.size // 2):
        u, v = x[c * length : min((c + 1) * length, x.size)], rest[c * length : min((c + 1) * length, x.size)]
        plus, minus, negatives = 0.0, 0.0, np.int64(0)
        for start in range(0, v.size, SEGMENT):
            more, less, signed = _add_sum_signs(u[start : start + SEGMENT], v[start : start + SEGMENT])
            plus, minus, negatives = plus + more, minus + less, negatives + np.int64(signed)
        positive, negative = _means(v, plus, minus, negatives)
        means[2 * c], means[2 * c + 1] = positive, negative
        _pack_signs(v, out[c * width :], padded)
        different = xor(bits_of(positive), bits_of(negative))
        for i in range(v.size):
            v[i] -= _mean_of(shr(bits_of(v[i]), _31), bits_of(positive), different)


@njit(inline="always")
def _mean_block(packed: Any, out: Any, n: int, positive: Any, different: Any) -> None:
    for segment in range(PLANES):  # one at a time: with eight places to write to, short columns take twice as long
        place, y = np.uint32(segment), out[segment * n : (segment + 1) * n]
        for j in range(n):
            signed = and_(shr(np.uint32(packed[j]), place), _1)
            y[j] = _mean_of(signed, positive, different)


@kernel((read_only(U8), read_only(F32), writable(F32), I64))
def unpack_chunk(packed: np.ndarray, means: np.ndarray, out: np.ndarray, length: int) -> None:
    """The inverse of `pack_chunk`: the mean of its column and sign for each element."""
    width, full = (length + PLANES - 1) // PLANES, PLANES * SEGMENT
    padded = np.empty(full, np.float32)
    for c in range(means.size // 2):
        run, y = packed[c * width :], out[c * length : min((c + 1) * length, out.size)]
        positive = bits_of(means[2 * c])
        different = xor(positive, bits_of(means[2 * c + 1]))
        blocks = y.size // full
        for k in range(blocks):
            bytes_ = run[k * SEGMENT : (k + 1) * SEGMENT]
            _mean_block(bytes_, y[k * full : (k + 1) * full], SEGMENT, positive, different)
        rest = y.size - blocks * full
        n = (rest + PLANES - 1) // PLANES
        if rest == PLANES * n:
            _mean_block(run[blocks * SEGMENT :], y[blocks * full :], n, positive, different)
        else:
            _mean_block(run[blocks * SEGMENT :], padded, n, positive, different)
            y[blocks * full :] = padded[:rest]
