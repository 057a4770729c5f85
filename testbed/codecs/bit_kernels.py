"""The hot loops of the 1-bit, k-bit and half-precision codecs; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from testbed.codecs.compiled import F32, F64, I64, U8, U16, U32, kernel, read_only, writable
from testbed.codecs.kernels import SEGMENT, abs_bits, hashed
from testbed.codecs.lanes import add, and_, bits_of, float_of, larger, low_byte, or_, shl, shr, sub, unary, xor
from testbed.codecs.level_kernels import PLANES, pack_planes, unpack_planes

_0, _1, _2, _3, _4, _5, _6, _7, _31 = (np.uint32(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 31))
_SIGN, _ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)


# --- one bit: signs, and the mean of each ------------------------------------------------------------------------


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
def signs_pack(x: np.ndarray, out: np.ndarray, means: np.ndarray, length: int) -> None:
    """Pack the sign bits of columns and find the means of the values of each sign.

    Parameters
    ----------
    x : float32 [n], columns one after the other, each of `length` elements but for the last
    out : uint8, a run of ceil(length / 8) bytes a column, its blocks of 8 segments as in `level_kernels.levels_pack`
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
def signs_pack_rest(x: np.ndarray, rest: np.ndarray, out: np.ndarray, means: np.ndarray, length: int) -> None:
    """`signs_pack` of x + rest, each column while it is in the cache; `rest` becomes what the means leave of it."""
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
def signs_unpack(packed: np.ndarray, means: np.ndarray, out: np.ndarray, length: int) -> None:
    """The inverse of `signs_pack`: the mean of its column and sign for each element."""
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


# --- k bits: levels between the smallest and the largest value -----------------------------------------------------


@njit(inline="always")
def _order(x: Any) -> Any:
    """32 bits that compare, unsigned, as the floats do; a NaN's are beyond those of the infinity of its sign."""
    bits = bits_of(x)
    return xor(bits, or_(sub(_0, shr(bits, _31)), _SIGN))


@kernel((read_only(F32),))
def extremes(x: np.ndarray) -> tuple[np.uint32, np.uint32]:
    """Return (the complement of the smallest, the largest) of x in bits that order as the floats: see `from_order`."""
    low, high = _0, _0
    for i in range(x.size):
        order = _order(x[i])
        low, high = larger(low, xor(order, _ALL)), larger(high, order)
    return low, high


@kernel((read_only(F32), read_only(F32)))
def extremes_sum(x: np.ndarray, rest: np.ndarray) -> tuple[np.uint32, np.uint32]:
    """`extremes` of x + rest."""
    low, high = _0, _0
    for i in range(x.size):
        order = _order(x[i] + rest[i])
        low, high = larger(low, xor(order, _ALL)), larger(high, order)
    return low, high


def from_order(order: int) -> np.float32:
    """The float32 of the bits that `extremes` compares."""
    return np.uint32(order ^ 0x80000000 if order >> 31 else order ^ 0xFFFFFFFF).view(np.float32)


@njit(inline="always")
def _value(level: Any, low: Any, step: Any) -> Any:
    return np.float32(low + np.float64(level) * step)


@njit(inline="always")
def _part(random: Any, counter: Any, key: Any) -> Any:
    """What is added before the fraction is cut: a half, or 31 random bits as a float64 in [0, 1)."""
    if random:
        return np.float64(np.int32(shr(hashed(counter, key), _1))) * 2.0**-31
    return 0.5


@njit(inline="always")
def _levels(x: Any, levels: Any, low: Any, inverse: Any, random: Any, first: Any, key: Any) -> None:
    for i in range(x.size):
        part = _part(random, add(np.uint32(first), np.uint32(i)), key)
        levels[i] = np.uint8(np.int32((np.float64(x[i]) - low) * inverse + part))


@njit(inline="always")
def _levels_rest(x: Any, rest: Any, levels: Any, low: Any, step: Any, random: Any, first: Any, key: Any) -> None:
    """The levels of x + rest; `rest` becomes what they leave of it."""
    inverse = 1 / step if step > 0 else 0.0
    for i in range(x.size):
        part = _part(random, add(np.uint32(first), np.uint32(i)), key)
        value = x[i] + rest[i]
        level = np.int32((np.float64(value) - low) * inverse + part)
        levels[i] = np.uint8(level)
        rest[i] = value - _value(level, low, step)


@kernel((read_only(F32), writable(U8), F64, F64, types.boolean, I64, U32))
def quantize(x: np.ndarray, levels: np.ndarray, low: float, step: float, random: bool, first: int, key: int) -> None:
    """Write the level of each x: (x - low) / step, rounded, which the caller knows to be in 0 .. 255.

    Parameters
    ----------
    random : round up or down at random, so that the mean is x; otherwise to the nearest, halves up
    first : index of x[0] within its layer: the counter of the random numbers
    key : 32 bits, see `testbed.codecs.base.Key`
    """
    _levels(x, levels, low, 1 / step if step > 0 else 0.0, random, first, key)


@kernel((read_only(F32), writable(F32), writable(U8), I64, F64, F64, types.boolean, I64, U32))
def quantize_pack(
    x: np.ndarray,
    rest: np.ndarray,
    out: np.ndarray,
    bits: int,
    low: float,
    step: float,
    random: bool,
    first: int,
    key: int,
) -> None:
    """`quantize` x + rest and pack the levels as `level_kernels.levels_pack` does, a block while it is in the cache.

    `rest` becomes what the levels leave of it; without elements it stands for zero. Eight bits are not packed: a byte
    is a level.
    """
    full, inverse = PLANES * SEGMENT, 1 / step if step > 0 else 0.0
    scratch = np.empty(full, np.uint8)
    for start in range(0, x.size, full):
        part = x[start : start + full]
        n = (part.size + PLANES - 1) // PLANES
        levels = out[start:] if bits == PLANES else scratch
        if rest.size > 0:
            _levels_rest(part, rest[start : start + full], levels, low, step, random, first + start, key)
        else:
            _levels(part, levels, low, inverse, random, first + start, key)
        if bits < PLANES:
            levels[part.size : n * PLANES] = 0
            pack_planes(levels, out[bits * start // PLANES :], n, bits)


@njit(inline="always")
def _values(levels: Any, out: Any, low: Any, step: Any) -> None:
    for i in range(out.size):
        out[i] = _value(levels[i], low, step)


@kernel((read_only(U8), writable(F32), I64, F64, F64))
def reconstruct(packed: np.ndarray, out: np.ndarray, bits: int, low: float, step: float) -> None:
    """Write low + level * step, made in float64, for each packed level."""
    if bits == PLANES:
        _values(packed, out, low, step)
        return
    full = PLANES * SEGMENT
    levels = np.empty(full, np.uint8)
    for start in range(0, out.size, full):
        part = out[start : start + full]
        unpack_planes(packed[bits * start // PLANES :], levels, (part.size + PLANES - 1) // PLANES, bits)
        _values(levels, part, low, step)


# --- half precision ------------------------------------------------------------------------------------------------


def _to_half(builder: Any, x: Any) -> Any:
    return builder.bitcast(builder.fptrunc(x, ir.HalfType()), ir.IntType(16))


def _from_half(builder: Any, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())


half_bits = unary(U16, _to_half)  # the bits of the nearest half, ties to even
half_value = unary(F32, _from_half)  # the float32 of a half's bits


@kernel((read_only(F32), writable(U16), F32, F32))
def halves_pack(x: np.ndarray, out: np.ndarray, factor: float, limit: float) -> None:
    """Write the bits of the half-precision float nearest to x * factor, cut to +-limit."""
    for i in range(x.size):
        out[i] = half_bits(max(min(x[i] * factor, limit), -limit))


@kernel((read_only(U16), writable(F32), F32))
def halves_unpack(halves: np.ndarray, out: np.ndarray, factor: float) -> np.uint32:
    """Write the float32 of each half times `factor`; return the bits of the largest magnitude."""
    largest = _0
    for i in range(out.size):
        value = half_value(halves[i]) * factor
        largest = larger(largest, abs_bits(value))
        out[i] = value
    return largest
