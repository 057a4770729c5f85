"""The hot loops of k-bit messages: levels between a layer's smallest and largest value.

The rules are those of `testbed.codecs.kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from testbed.codecs.kernels.compiled import F32, F64, I64, U8, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import add, bits_of, larger, or_, shr, sub, xor
from testbed.codecs.kernels.planar import PLANES, SEGMENT, hashed, pack_planes, unpack_planes
from testbed.codecs.kernels.threads import in_chunks

_0, _1, _31 = (np.uint32(n) for n in (0, 1, 31))
_SIGN, _ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)
_NONE = np.empty(0, np.float32)


def extremes(x: np.ndarray, rest: np.ndarray | None) -> tuple[np.float32, np.float32]:
    """(smallest, largest) of a layer of x, or of x + rest; NaN or infinite where one of them is, and -0 is below 0."""

    def find(start: int, stop: int) -> tuple[int, int]:
        if rest is None:
            return extremes_chunk(x[start:stop])
        return extremes_sum_chunk(x[start:stop], rest[start:stop])

    low, high = (int(max(column)) for column in zip(*in_chunks(find, x.size), strict=True))
    return from_order(low ^ 0xFFFFFFFF), from_order(high)


def from_order(order: int) -> np.float32:
    """The float32 of the bits that `extremes_chunk` compares."""
    return np.uint32(order ^ 0x80000000 if order >> 31 else order ^ 0xFFFFFFFF).view(np.float32)


def quantize(x: np.ndarray, levels: np.ndarray, low: float, step: float, random: bool, key: np.uint32) -> None:
    """Write the levels of a layer; see `quantize_chunk`."""

    def find(start: int, stop: int) -> None:
        quantize_chunk(x[start:stop], levels[start:stop], low, step, random, start, key)

    in_chunks(find, x.size)


def pack(
    x: np.ndarray,
    rest: np.ndarray | None,
    planes: np.ndarray,
    low: float,
    step: float,
    bits: int,
    random: bool,
    key: np.uint32,
) -> None:
    """Pack the levels of a layer of x + rest; `rest` becomes what they leave of it. See `pack_chunk`."""

    def find(start: int, stop: int) -> None:
        left = _NONE if rest is None else rest[start:stop]
        out = planes[bits * start // PLANES :]
        pack_chunk(x[start:stop], left, out, bits, low, step, random, start, key)

    in_chunks(find, x.size)


def unpack(planes: np.ndarray, y: np.ndarray, low: float, step: float, bits: int) -> None:
    """Write a layer: low + level * step, made in float64, for each packed level."""
    in_chunks(
        lambda start, stop: unpack_chunk(planes[bits * start // PLANES :], y[start:stop], bits, low, step), y.size
    )


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _order(x: Any) -> Any:
    """32 bits that compare, unsigned, as the floats do; a NaN's are beyond those of the infinity of its sign."""
    bits = bits_of(x)
    return xor(bits, or_(sub(_0, shr(bits, _31)), _SIGN))


@kernel((read_only(F32),))
def extremes_chunk(x: np.ndarray) -> tuple[np.uint32, np.uint32]:
    """Return (the complement of the smallest, the largest) of x in bits that order as the floats: see `from_order`."""
    low, high = _0, _0
    for i in range(x.size):
        order = _order(x[i])
        low, high = larger(low, xor(order, _ALL)), larger(high, order)
    return low, high


@kernel((read_only(F32), read_only(F32)))
def extremes_sum_chunk(x: np.ndarray, rest: np.ndarray) -> tuple[np.uint32, np.uint32]:
    """`extremes_chunk` of x + rest."""
    low, high = _0, _0
    for i in range(x.size):
        order = _order(x[i] + rest[i])
        low, high = larger(low, xor(order, _ALL)), larger(high, order)
    return low, high


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
def quantize_chunk(
    x: np.ndarray, levels: np.ndarray, low: float, step: float, random: bool, first: int, key: int
) -> None:
    """Write the level of each x: (x - low) / step, rounded, which the caller knows to be in 0 .. 255.

    Parameters
    ----------
    random : round up or down at random, so that the mean is x; otherwise to the nearest, halves up
    first : index of x[0] within its layer: the counter of the random numbers
    key : 32 bits, see `testbed.codecs.base.Key`
    """
    _levels(x, levels, low, 1 / step if step > 0 else 0.0, random, first, key)


@kernel((read_only(F32), writable(F32), writable(U8), I64, F64, F64, types.boolean, I64, U32))
def pack_chunk(
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
    """`quantize_chunk` x + rest and pack the levels as `planar.pack_chunk` does, a block while it is in the cache.

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
def unpack_chunk(packed: np.ndarray, out: np.ndarray, bits: int, low: float, step: float) -> None:
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
