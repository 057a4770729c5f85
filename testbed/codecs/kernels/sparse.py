"""The hot loops of sparse messages: selection by magnitude, places as gaps, values in parts, scattering.

The rules are those of `testbed.codecs.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.buffers import Allocate
from testbed.codecs.kernels.compiled import F32, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import abs_bits, and_, bits_of, float_of, larger, low_byte, or_, shl, shr, sub, xor
from testbed.codecs.kernels.threads import CHUNK, in_chunks

BLOCK = 64  # elements that are looked at together: most blocks hold nothing to select

_ABS, _FRACTION, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7FFFFF), np.uint32(0x800000)  # the sign 8 bits down
_FRACTION_BITS, _NONE, _1, _8, _16, _31 = (np.uint32(n) for n in (23, 0, 1, 8, 16, 31))


def select(x: np.ndarray, threshold: np.uint32, allocate: Allocate) -> np.ndarray:
    """The places (uint32, increasing) of the elements with bits of the magnitude >= threshold > 0.

    NaN and infinity are always among them.
    """
    return _found(lambda first, last, out: select_chunk(x[first:last], threshold, first, out), x.size, allocate)


def add_select(x: np.ndarray, total: np.ndarray, threshold: np.uint32, allocate: Allocate) -> np.ndarray:
    """total += x, and `select` from the total, in one pass."""

    def find(first: int, last: int, out: np.ndarray) -> int:
        return add_select_chunk(x[first:last], total[first:last], threshold, first, out)

    return _found(find, x.size, allocate)


def _found(find: Callable[[int, int, np.ndarray], int], size: int, allocate: Allocate) -> np.ndarray:
    """What `find(first, last, out)` writes of each chunk; it returns how much that is, and needs room for one more."""
    room = allocate(size + -(-size // CHUNK), np.uint32)

    def found(first: int, last: int) -> np.ndarray:
        out = room[first + first // CHUNK :][: last - first + 1]
        return out[: find(first, last, out)]

    parts = in_chunks(found, size)
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([room[:0], *parts], out=allocate(sum(part.size for part in parts), np.uint32))


def gather(x: np.ndarray, places: np.ndarray, allocate: Allocate) -> np.ndarray:
    """x[places]; numpy would first widen the places to 64 bits."""
    values = allocate(places.size, np.float32)
    gather_into(x, places, values)
    return values


@kernel((writable(F32), read_only(U32), read_only(F32)))
def put(x: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """x[places] = values; places are below x.size."""
    for i in range(places.size):
        x[places[i]] = values[i]


@kernel((writable(F32), read_only(U32), read_only(F32)))
def add(x: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """x[places] += values; places are below x.size."""
    for i in range(places.size):
        x[places[i]] += values[i]


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _select_block(x: Any, threshold: Any, place: int, out: Any, count: int) -> int:
    """Append the places of the elements of a block; without a branch, as many blocks hold several."""
    for j in range(x.size):
        out[count] = np.uint32(place + j)
        count += 1 if abs_bits(x[j]) >= threshold else 0
    return count


@kernel((read_only(F32), U32, I64, writable(U32)))
def select_chunk(x: np.ndarray, threshold: int, start: int, out: np.ndarray) -> int:
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
def add_select_chunk(x: np.ndarray, total: np.ndarray, threshold: int, start: int, out: np.ndarray) -> int:
    """total += x, and `select_chunk` from the total, in one pass."""
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


@kernel((read_only(F32), read_only(U32), writable(F32)))
def gather_into(x: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """out = x[places]; places are below x.size."""
    for i in range(places.size):
        out[i] = x[places[i]]


# --- places as gaps ------------------------------------------------------------------------------------------------


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


# --- values as exponents and fractions, and as signs ---------------------------------------------------------------


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
