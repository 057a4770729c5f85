"""The hot loops of sparse messages: selection by magnitude, Rice codes, scattering.

The rules of `testbed.codecs.kernels` hold here too, but for the bit streams of Rice codes: those have no planes,
because a code's length depends on its number. They are written and read in words of 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from testbed.codecs.compiled import F32, F64, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels import abs_bits
from testbed.codecs.lanes import and_, bits_of, float_of, larger, low_byte, or_, shl, shr, sub, xor

U64 = types.uint64
BLOCK = 64  # elements that are looked at together: most blocks hold nothing to select
MAX_PARAMETER = 31  # of a Rice code of 32-bit numbers

_ABS, _FRACTION, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7FFFFF), np.uint32(0x800000)  # the sign 8 bits down
_FRACTION_BITS, _NONE, _1, _8, _16, _31 = (np.uint32(n) for n in (23, 0, 1, 8, 16, 31))
_ZERO, _ONE, _6, _32, _63, _64 = (np.uint64(n) for n in (0, 1, 6, 32, 63, 64))

_intrinsic: Any = intrinsic


@_intrinsic
def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """The number of zero bits below the lowest one bit of a word that is not zero."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return I64(word), build


# --- selection ---------------------------------------------------------------------------------------------------


@njit(inline="always")
def _select_block(x: Any, threshold: Any, place: int, out: Any, count: int) -> int:
    """Append the places of the elements of a block; without a branch, as many blocks hold several."""
    for j in range(x.size):
        out[count] = np.uint32(place + j)
        count += 1 if abs_bits(x[j]) >= threshold else 0
    return count


@kernel((read_only(F32), U32, I64, writable(U32)))
def select(x: np.ndarray, threshold: int, start: int, out: np.ndarray) -> int:
    """Write the places of the elements whose magnitude's bits are `threshold` or more; return how many.

    Parameters
    ----------
    x : float32 [n], which begins at place `start` of the vector
    threshold : 1 selects all that is not zero; NaN and infinity are selected by any finite threshold
    out : uint32 [n + 1]
    """
    count, blocks = 0, x.size // BLOCK
    for b in range(blocks):
        part = x[b * BLOCK : (b + 1) * BLOCK]
        largest = _NONE
        for j in range(BLOCK):
            largest = larger(largest, abs_bits(part[j]))
        if largest >= threshold:
            count = _select_block(part, threshold, start + b * BLOCK, out, count)
    return _select_block(x[blocks * BLOCK :], threshold, start + blocks * BLOCK, out, count)


@kernel((read_only(F32), writable(F32), U32, I64, writable(U32)))
def add_select(x: np.ndarray, total: np.ndarray, threshold: int, start: int, out: np.ndarray) -> int:
    """total += x, and `select` from the total, in one pass."""
    count, blocks = 0, x.size // BLOCK
    for b in range(blocks):
        part, sums = x[b * BLOCK : (b + 1) * BLOCK], total[b * BLOCK : (b + 1) * BLOCK]
        largest = _NONE
        for j in range(BLOCK):
            sums[j] += part[j]
            largest = larger(largest, abs_bits(sums[j]))
        if largest >= threshold:
            count = _select_block(sums, threshold, start + b * BLOCK, out, count)
    part, sums = x[blocks * BLOCK :], total[blocks * BLOCK :]
    for j in range(part.size):
        sums[j] += part[j]
    return _select_block(sums, threshold, start + blocks * BLOCK, out, count)


@kernel((read_only(F32), F32, F32, types.boolean, writable(F32), writable(F32)))
def accumulate(
    x: np.ndarray, factor: float, momentum: float, nesterov: bool, velocity: np.ndarray, total: np.ndarray
) -> None:
    """u <- momentum * u + factor * x; total += u, with `nesterov` factor * x + momentum * u.

    A velocity without elements stands for a momentum of zero.
    """
    if velocity.size == 0:
        for i in range(x.size):
            total[i] += factor * x[i]
    elif nesterov:
        for i in range(x.size):
            gradient = factor * x[i]
            velocity[i] = momentum * velocity[i] + gradient
            total[i] += gradient + momentum * velocity[i]
    else:
        for i in range(x.size):
            velocity[i] = momentum * velocity[i] + factor * x[i]
            total[i] += velocity[i]


@kernel((read_only(F32), read_only(U32), writable(F32)))
def gather(x: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """out = x[places]; places are below x.size."""
    for i in range(places.size):
        out[i] = x[places[i]]


@kernel((read_only(U32), read_only(F32), writable(F32)))
def scatter(places: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """out[places] = values; places are below out.size."""
    for i in range(places.size):
        out[places[i]] = values[i]


@kernel((read_only(U32), read_only(F32), writable(F32)))
def scatter_add(places: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """out[places] += values; places are below out.size."""
    for i in range(places.size):
        out[places[i]] += values[i]


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


# --- places as gaps ------------------------------------------------------------------------------------------------


@kernel((read_only(U32), read_only(I64), read_only(I64), writable(U32)))
def gaps_of(places: np.ndarray, counts: np.ndarray, offsets: np.ndarray, gaps: np.ndarray) -> None:
    """The number of elements skipped before each place, from its layer's offset or the place before it."""
    i = 0
    for layer in range(counts.size):
        following = offsets[layer]
        for _ in range(counts[layer]):
            gaps[i] = np.uint32(places[i] - following)
            following = places[i] + 1
            i += 1


@kernel((writable(U32), read_only(I64), read_only(I64), read_only(I64)))
def places_of(gaps: np.ndarray, counts: np.ndarray, offsets: np.ndarray, ends: np.ndarray) -> int:
    """Turn gaps into places where they are; return the first layer that a place lies beyond, or -1."""
    i = 0
    for layer in range(counts.size):
        following = offsets[layer]
        for _ in range(counts[layer]):
            place = following + np.int64(gaps[i])
            if place >= ends[layer]:
                return layer
            gaps[i] = np.uint32(place)
            following = place + 1
            i += 1
    return -1


# --- values as exponents and fractions --------------------------------------------------------------------------


@kernel((read_only(F32), read_only(I64), writable(U8), writable(U32), writable(U8)))
def split_floats(
    values: np.ndarray, counts: np.ndarray, largest: np.ndarray, lower: np.ndarray, fractions: np.ndarray
) -> None:
    """Take floats apart: each layer's largest exponent, how far each value's is below it, sign and fraction."""
    start = 0
    for layer in range(counts.size):
        stop = start + counts[layer]
        top = _NONE
        for i in range(start, stop):
            top = larger(top, shr(abs_bits(values[i]), _FRACTION_BITS))
        largest[layer] = low_byte(top)
        for i in range(start, stop):
            bits = bits_of(values[i])
            lower[i] = sub(top, shr(and_(bits, _ABS), _FRACTION_BITS))
            rest = or_(and_(bits, _FRACTION), and_(shr(bits, _8), _SIGN))
            fractions[3 * i] = low_byte(rest)
            fractions[3 * i + 1] = low_byte(shr(rest, _8))
            fractions[3 * i + 2] = low_byte(shr(rest, _16))
        start = stop


@kernel((read_only(U8), read_only(U32), read_only(U8), read_only(I64), writable(F32)))
def join_floats(
    largest: np.ndarray, lower: np.ndarray, fractions: np.ndarray, counts: np.ndarray, values: np.ndarray
) -> bool:
    """The inverse of `split_floats`; false when an exponent is below 0."""
    start = 0
    for layer in range(counts.size):
        stop, top = start + counts[layer], np.uint32(largest[layer])
        for i in range(start, stop):
            if lower[i] > top:
                return False
            rest = np.uint32(fractions[3 * i])
            rest = or_(rest, shl(np.uint32(fractions[3 * i + 1]), _8))
            rest = or_(rest, shl(np.uint32(fractions[3 * i + 2]), _16))
            bits = or_(and_(rest, _FRACTION), shl(and_(rest, _SIGN), _8))
            values[i] = float_of(or_(bits, shl(sub(top, lower[i]), _FRACTION_BITS)))
        start = stop
    return True


# --- values as signs and multiples --------------------------------------------------------------------------------


@kernel((read_only(F32), writable(U8)))
def sign_bits(values: np.ndarray, out: np.ndarray) -> None:
    """Write a bit for each value, 1 where it is below zero, the first in the lowest bit of the first byte."""
    for j in range(out.size):
        byte = _NONE
        for k in range(min(8, values.size - 8 * j)):
            byte = or_(byte, shl(np.uint32(values[8 * j + k] < 0), np.uint32(k)))
        out[j] = low_byte(byte)


@kernel((read_only(U8), writable(F32)))
def negate(flags: np.ndarray, values: np.ndarray) -> None:
    """Change the signs of the values whose bit is 1; see `sign_bits`."""
    for i in range(values.size):
        flag = and_(shr(np.uint32(flags[i // 8]), np.uint32(i % 8)), _1)
        values[i] = float_of(xor(bits_of(values[i]), shl(flag, _31)))


@kernel((read_only(F32), F64, I64, types.boolean, writable(U32)))
def levels_of(values: np.ndarray, unit: float, limit: int, nearest: bool, out: np.ndarray) -> None:
    """Write |value| / unit as a whole number, the nearest or the one below, cut to the limit; values are finite."""
    for i in range(values.size):
        level = np.float64(abs(values[i])) / unit
        level = np.rint(level) if nearest else np.floor(level)
        out[i] = np.uint32(np.int64(min(level, np.float64(limit))))


@kernel((read_only(U32), F64, writable(F32)))
def multiples_of(levels: np.ndarray, unit: float, out: np.ndarray) -> None:
    """Write level * unit, made in float64."""
    for i in range(levels.size):
        out[i] = np.float32(np.float64(levels[i]) * unit)


# --- Rice codes ------------------------------------------------------------------------------------------------------


@njit(inline="always")
def _quotient_sum(numbers: Any, parameter: Any) -> Any:
    total = np.int64(0)
    for i in range(numbers.size):
        total += np.int64(shr(numbers[i], parameter))
    return total


@kernel((read_only(U32), read_only(I64), writable(U8)))
def rice_plan(numbers: np.ndarray, counts: np.ndarray, parameters: np.ndarray) -> tuple[int, int]:
    """Find each section's best parameter; return the bits of all remainders and of all quotients.

    n numbers cost n * (parameter + 1) + the sum of their quotients. That is convex in the parameter, and rises from
    log2(mean) + 1 on, so a descent from there ends at the smallest.
    """
    remainder_bits, quotient_bits, start = 0, 0, 0
    for section in range(counts.size):
        count = counts[section]
        part = numbers[start : start + count]
        start += count
        mean = _quotient_sum(part, _NONE) // max(count, 1)
        parameter = 0
        while mean >> parameter > 0 and parameter < MAX_PARAMETER:
            parameter += 1
        quotients = _quotient_sum(part, np.uint32(parameter))
        while parameter > 0:
            more = _quotient_sum(part, np.uint32(parameter - 1))
            if more - quotients >= count:
                break
            parameter, quotients = parameter - 1, more
        parameters[section] = parameter
        remainder_bits += count * parameter
        quotient_bits += count + quotients
    return remainder_bits, quotient_bits


@kernel((read_only(U32), read_only(I64), read_only(U8), writable(U64), writable(U64)))
def rice_pack(
    numbers: np.ndarray, counts: np.ndarray, parameters: np.ndarray, remainders: np.ndarray, quotients: np.ndarray
) -> None:
    """Write each number as its lowest `parameter` bits, and as many zeros as the rest says, then a one.

    Parameters
    ----------
    remainders, quotients : uint64, zeros, of the bits that `rice_plan` returns and a word more
    """
    at, mark, i = _ZERO, _ZERO, 0
    for section in range(counts.size):
        parameter = np.uint64(parameters[section])
        mask = (_ONE << parameter) - _ONE
        for _ in range(counts[section]):
            number = np.uint64(numbers[i])
            remainder, shift = number & mask, at & _63
            remainders[at >> _6] |= remainder << shift
            if shift + parameter > _64:
                remainders[(at >> _6) + _ONE] |= remainder >> (_64 - shift)
            at += parameter
            mark += number >> parameter
            quotients[mark >> _6] |= _ONE << (mark & _63)
            mark += _ONE
            i += 1


@kernel((read_only(U64), read_only(U64), read_only(I64), read_only(U8), writable(U32)))
def rice_unpack(
    remainders: np.ndarray, quotients: np.ndarray, counts: np.ndarray, parameters: np.ndarray, out: np.ndarray
) -> int:
    """The inverse of `rice_pack`; return how many bits of the quotients it took.

    Returns -1 when they end too soon or go on after the last number, or when a number has more than 32 bits.
    """
    at, following, i = _ZERO, 0, 0  # bits of the remainders, of the quotients; numbers
    index, word = 0, quotients[0]
    for section in range(counts.size):
        parameter = np.uint64(parameters[section])
        mask = (_ONE << parameter) - _ONE
        for _ in range(counts[section]):
            while word == _ZERO:
                index += 1
                if index == quotients.size:
                    return -1
                word = quotients[index]
            mark = 64 * index + _trailing_zeros(word)
            word &= word - _ONE
            quotient = np.uint64(mark - following)
            following = mark + 1
            shift = at & _63
            remainder = remainders[at >> _6] >> shift
            if shift + parameter > _64:
                remainder |= remainders[(at >> _6) + _ONE] << (_64 - shift)
            at += parameter
            if quotient >> (_32 - parameter) != _ZERO:
                return -1
            out[i] = np.uint32((quotient << parameter) | (remainder & mask))
            i += 1
    if word != _ZERO:
        return -1
    return following
