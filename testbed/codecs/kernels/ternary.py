"""The hot loops of ternary vectors; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from testbed.codecs.kernels.compiled import F32, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import (
    abs_bits,
    add,
    and_,
    bits_of,
    float_of,
    larger,
    low_byte,
    mul,
    or_,
    shl,
    shr,
    smaller,
    sub,
    to_float,
    where_less,
    xor,
)
from testbed.codecs.kernels.planar import R1, R2, SEGMENT, hashed
from testbed.codecs.kernels.threads import CHUNK, in_chunks

TRITS = 5  # base-3 digits in a byte: 3^5 = 243 <= 256
MAX_TRIT_BYTE = 3**TRITS - 1
# A draw compares 31 random bits with |x| * 2^31 / scale. The factor is 2^-22 too large so that rounding never
# lets an element as large as the scale become zero; it is the only bias, 2.4e-7 of an element's own value.
DRAW_RANGE = 2.0**31 * (1 + 2.0**-22)

_1, _9, _16, _31 = (np.uint32(n) for n in (1, 9, 16, 31))
_ABS, _SIGN, _NONE = np.uint32(0x7FFFFFFF), np.uint32(0x80000000), np.uint32(0)
_W0, _W1, _W2, _W3, _W4 = (np.uint32(3**i) for i in range(TRITS))


# --- statistics of a layer ----------------------------------------------------------------------------------------


def magnitude(x: np.ndarray) -> tuple[float, int]:
    """(sum of |x|, bits of the largest magnitude) of a layer."""
    parts = in_chunks(lambda start, stop: magnitude_chunk(x[start:stop]), x.size)
    return sum(total for total, _ in parts), max((largest for _, largest in parts), default=0)


def kept(x: np.ndarray, threshold: np.float32) -> tuple[int, float]:
    """(how many, sum of |x|) over the elements of a layer with |x| > threshold."""
    parts = in_chunks(lambda start, stop: kept_chunk(x[start:stop], threshold), x.size)
    return sum(count for count, _ in parts), sum(total for _, total in parts)


def kept_weighted(x: np.ndarray, weight: np.ndarray, threshold: np.float32) -> tuple[int, float, float]:
    """(how many, sum of weight*|x|, sum of weight) over the elements of a layer with |x| > threshold."""
    parts = in_chunks(lambda start, stop: kept_weighted_chunk(x[start:stop], weight[start:stop], threshold), x.size)
    return sum(part[0] for part in parts), sum(part[1] for part in parts), sum(part[2] for part in parts)


@kernel((read_only(F32),), fastmath={"reassoc"})
def magnitude_chunk(x: np.ndarray) -> tuple[float, np.uint32]:
    """Return (sum of |x|, bits of the largest magnitude)."""
    total, largest = 0.0, _NONE
    for i in range(x.size):
        bits = abs_bits(x[i])
        total += np.float64(float_of(bits))
        largest = larger(largest, bits)
    return total, largest


@njit(inline="always")
def kept_of(x: Any, threshold: Any) -> Any:
    """See `kept_chunk`."""
    count, total = 0, 0.0
    for i in range(x.size):
        size = float_of(abs_bits(x[i]))
        keep = size > threshold
        count += keep
        total += np.float64(size) if keep else 0.0
    return count, total


@kernel((read_only(F32), F32), fastmath={"reassoc"})
def kept_chunk(x: np.ndarray, threshold: float) -> tuple[int, float]:
    """Return (how many, sum of |x|) over the elements with |x| > threshold."""
    return kept_of(x, threshold)


@kernel((read_only(F32), read_only(F32), F32), fastmath={"reassoc", "contract"})
def kept_weighted_chunk(x: np.ndarray, weight: np.ndarray, threshold: float) -> tuple[int, float, float]:
    """Return (how many, sum of weight*|x|, sum of weight) over the elements with |x| > threshold."""
    count, total, mass = 0, 0.0, 0.0
    for i in range(x.size):
        size = float_of(abs_bits(x[i]))
        keep = size > threshold
        count += keep
        factor = np.float64(weight[i]) if keep else 0.0
        total += factor * np.float64(size)
        mass += factor
    return count, total, mass


# --- packing ------------------------------------------------------------------------------------------------------


def pack(x: np.ndarray, trits: np.ndarray, inverse: np.float32, limit: np.float32, clip: bool, key: np.uint32) -> None:
    """Ternarize a layer at random into its run; see `pack_chunk`."""

    def draw(start: int, stop: int) -> None:
        first = start // TRITS
        pack_chunk(x[start:stop], trits[first:], first, inverse, limit, clip, key)

    in_chunks(draw, x.size)


def pack_signs(x: np.ndarray, trits: np.ndarray, threshold: np.float32) -> None:
    """Pack the signs of a layer's elements above the threshold (>= 0) into its run, zero for the others."""
    in_chunks(lambda start, stop: pack_signs_chunk(x[start:stop], trits[start // TRITS :], threshold), x.size)


def unpack(trits: np.ndarray, y: np.ndarray, scale: np.float32) -> None:
    """Write a layer: 0, scale or -scale for each digit of its run."""
    in_chunks(lambda start, stop: unpack_chunk(trits[start // TRITS :], y[start:stop], scale), y.size)


@njit(inline="always")
def _rehash(h: Any, factor: Any) -> Any:
    """32 more random bits: a further round of the hash."""
    h = mul(h, factor)
    return xor(h, shr(h, _16))


@njit(inline="always")
def _swap(h: Any) -> Any:
    """The two halves exchanged: as exactly uniform as h, and tied to it only through the finest bits."""
    return or_(shl(h, _16), shr(h, _16))


@njit(inline="always")
def _draw(value: Any, h: Any, inverse: Any, limit: Any, clip: Any, weight: Any) -> Any:
    """`weight` (value > 0), 2*`weight` (value < 0) or 0; not 0 where 31 bits of h are below |value|*inverse."""
    bits = bits_of(value)
    level = float_of(and_(bits, _ABS)) * inverse
    if clip:
        level = smaller(level, limit)
    return where_less(to_float(shr(h, _1)), level, shl(weight, shr(bits, _31)))


@njit(inline="always")
def draw_block(x: Any, out: Any, n: int, first: int, inverse: Any, limit: Any, clip: Any, key: Any) -> None:
    """Ternarize and pack 5 segments of n elements into n bytes, the first of which is byte `first` of its run."""
    x0, x1, x2, x3, x4 = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n : 4 * n], x[4 * n : 5 * n]
    for j in range(n):
        h = hashed(add(np.uint32(first), np.uint32(j)), key)
        byte = _draw(x0[j], h, inverse, limit, clip, _W0)
        byte = add(byte, _draw(x1[j], _swap(h), inverse, limit, clip, _W1))
        h = _rehash(h, R1)
        byte = add(byte, _draw(x2[j], h, inverse, limit, clip, _W2))
        byte = add(byte, _draw(x3[j], _swap(h), inverse, limit, clip, _W3))
        h = _rehash(h, R2)
        byte = add(byte, _draw(x4[j], h, inverse, limit, clip, _W4))
        out[j] = low_byte(byte)


@kernel((read_only(F32), writable(U8), I64, F32, F32, types.boolean, U32))
def pack_chunk(x: np.ndarray, out: np.ndarray, first: int, inverse: float, limit: float, clip: bool, key: int) -> None:
    """Ternarize x at random and pack it, five digits a byte (0: zero, 1: positive, 2: negative).

    Parameters
    ----------
    x : float32 [n]; out : uint8 [ceil(n / 5)]
    first : index of out[0] within the layer's run: the counter of the random numbers
    inverse : 2^31 / scale: an element is not zero with probability |x| * inverse / 2^31
    limit : |x| * inverse is cut to this where `clip` is set
    key : 32 bits, see `testbed.codecs.base.Key`
    """
    full = TRITS * SEGMENT
    blocks = x.size // full
    for k in range(blocks):
        part, bytes_ = x[k * full : (k + 1) * full], out[k * SEGMENT : (k + 1) * SEGMENT]
        draw_block(part, bytes_, SEGMENT, first + k * SEGMENT, inverse, limit, clip, key)
    rest = x.size - blocks * full
    if rest:
        n = (rest + TRITS - 1) // TRITS
        padded = np.zeros(TRITS * n, np.float32)  # a zero is coded as zero whatever is drawn
        padded[:rest] = x[blocks * full :]
        draw_block(padded, out[blocks * SEGMENT :], n, first + blocks * SEGMENT, inverse, limit, clip, key)


@njit(inline="always")
def _choose(value: Any, threshold: Any, weight: Any) -> Any:
    bits = bits_of(value)
    return where_less(threshold, float_of(and_(bits, _ABS)), shl(weight, shr(bits, _31)))


@njit(inline="always")
def choose_block(x: Any, out: Any, n: int, threshold: Any) -> None:
    x0, x1, x2, x3, x4 = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n : 4 * n], x[4 * n : 5 * n]
    for j in range(n):
        low = add(_choose(x0[j], threshold, _W0), _choose(x1[j], threshold, _W1))
        high = add(_choose(x2[j], threshold, _W2), _choose(x3[j], threshold, _W3))
        out[j] = low_byte(add(add(low, high), _choose(x4[j], threshold, _W4)))


@kernel((read_only(F32), writable(U8), F32))
def pack_signs_chunk(x: np.ndarray, out: np.ndarray, threshold: float) -> None:
    """Pack sign(x) where |x| > threshold (>= 0), else zero, in the format of `pack_chunk`."""
    full = TRITS * SEGMENT
    blocks = x.size // full
    for k in range(blocks):
        part, bytes_ = x[k * full : (k + 1) * full], out[k * SEGMENT : (k + 1) * SEGMENT]
        choose_block(part, bytes_, SEGMENT, threshold)
    rest = x.size - blocks * full
    if rest:
        n = (rest + TRITS - 1) // TRITS
        padded = np.zeros(TRITS * n, np.float32)
        padded[:rest] = x[blocks * full :]
        choose_block(padded, out[blocks * SEGMENT :], n, threshold)


# --- ternary, the other way --------------------------------------------------------------------------------------

_THIRD, _3 = np.uint32(171), np.uint32(3)  # b * 171 >> 9 is b // 3 for b < 512


@njit(inline="always")
def _third(b: Any) -> Any:
    return shr(mul(b, _THIRD), _9)


@njit(inline="always")
def _value(digit: Any, scale: Any) -> Any:
    """The float32 of a digit by masks on the scale's bits: 0, scale, -scale."""
    positive = and_(scale, sub(_NONE, and_(digit, _1)))
    negative = and_(or_(scale, _SIGN), sub(_NONE, shr(digit, _1)))
    return float_of(or_(positive, negative))


@njit(inline="always")
def unpack_block(packed: Any, out: Any, n: int, scale: Any) -> None:
    y0, y1, y2, y3, y4 = out[:n], out[n : 2 * n], out[2 * n : 3 * n], out[3 * n : 4 * n], out[4 * n : 5 * n]
    for j in range(n):
        a = np.uint32(packed[j])
        b = _third(a)
        y0[j] = _value(sub(a, mul(b, _3)), scale)
        c = _third(b)
        y1[j] = _value(sub(b, mul(c, _3)), scale)
        d = _third(c)
        y2[j] = _value(sub(c, mul(d, _3)), scale)
        e = _third(d)
        y3[j] = _value(sub(d, mul(e, _3)), scale)
        y4[j] = _value(e, scale)


@kernel((read_only(U8), writable(F32), F32))
def unpack_chunk(packed: np.ndarray, out: np.ndarray, scale: float) -> None:
    """Write 0, scale or -scale for each packed digit; bytes must not exceed `MAX_TRIT_BYTE`."""
    full, bits = TRITS * SEGMENT, bits_of(scale)
    blocks = out.size // full
    for k in range(blocks):
        bytes_ = packed[k * SEGMENT : (k + 1) * SEGMENT]
        unpack_block(bytes_, out[k * full : (k + 1) * full], SEGMENT, bits)
    rest = out.size - blocks * full
    if rest:
        n = (rest + TRITS - 1) // TRITS
        padded = np.empty(TRITS * n, np.float32)
        unpack_block(packed[blocks * SEGMENT :], padded, n, bits)
        out[blocks * full :] = padded[:rest]


assert CHUNK % (TRITS * SEGMENT) == 0  # a chunk's trits begin at a block
