"""The hot loops of sums of ternary messages; the rules are those of `testbed.codecs.kernels`.

Levels are kept raised: a sum of n digits, each -1, 0 or 1, is stored as sum + n, in 0 .. 2n, unsigned. Adding two
sums adds their raised levels, and packing needs no sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.compiled import F32, F64, I64, U8, U16, kernel, read_only, writable
from testbed.codecs.kernels import SEGMENT, TRITS
from testbed.codecs.lanes import add, bit_at, bit_to, like, mul, or_, shr, sub, where_equal

PLANES = 8  # segments of a block of bit planes: the bits of a byte

_1, _2, _3, _9, _THIRD = (np.uint16(n) for n in (1, 2, 3, 9, 171))  # b * 171 >> 9 is b // 3 for a byte


@njit(inline="always")
def _third(b: Any) -> Any:
    return shr(mul(b, _THIRD), _9)


@njit(inline="always")
def _raised(digit: Any) -> Any:
    """The wire's 0, 1, 2 (zero, positive, negative) as 1, 2, 0."""
    return where_equal(digit, _2, sub(digit, _2), add(digit, _1))


@njit(inline="always")
def _add_block(packed: Any, levels: Any, n: int) -> None:
    z0, z1, z2 = levels[:n], levels[n : 2 * n], levels[2 * n : 3 * n]
    z3, z4 = levels[3 * n : 4 * n], levels[4 * n : 5 * n]
    for j in range(n):
        a = np.uint16(packed[j])
        b = _third(a)
        z0[j] = add(z0[j], like(z0[j], _raised(sub(a, mul(b, _3)))))
        c = _third(b)
        z1[j] = add(z1[j], like(z1[j], _raised(sub(b, mul(c, _3)))))
        d = _third(c)
        z2[j] = add(z2[j], like(z2[j], _raised(sub(c, mul(d, _3)))))
        e = _third(d)
        z3[j] = add(z3[j], like(z3[j], _raised(sub(d, mul(e, _3)))))
        z4[j] = add(z4[j], like(z4[j], _raised(e)))


@kernel((read_only(U8), writable(U8)), (read_only(U8), writable(U16)))
def ternary_add(packed: np.ndarray, levels: np.ndarray) -> None:
    """Add packed digits (see `kernels.ternary_pack`), each raised by one, to the levels."""
    full = TRITS * SEGMENT
    blocks = levels.size // full
    for k in range(blocks):
        _add_block(packed[k * SEGMENT : (k + 1) * SEGMENT], levels[k * full : (k + 1) * full], SEGMENT)
    rest = levels.size - blocks * full
    if rest:
        n = (rest + TRITS - 1) // TRITS
        padded = np.zeros(TRITS * n, levels.dtype)
        padded[:rest] = levels[blocks * full :]
        _add_block(packed[blocks * SEGMENT :], padded, n)
        levels[blocks * full :] = padded[:rest]


@njit(inline="always")
def pack_planes(levels: Any, out: Any, n: int, bits: int) -> None:
    v0, v1, v2, v3 = levels[:n], levels[n : 2 * n], levels[2 * n : 3 * n], levels[3 * n : 4 * n]
    v4, v5, v6, v7 = levels[4 * n : 5 * n], levels[5 * n : 6 * n], levels[6 * n : 7 * n], levels[7 * n : 8 * n]
    for k in range(bits):
        plane = out[k * n : (k + 1) * n]
        for j in range(n):
            low = or_(or_(bit_at(v0[j], k, 0), bit_at(v1[j], k, 1)), or_(bit_at(v2[j], k, 2), bit_at(v3[j], k, 3)))
            high = or_(or_(bit_at(v4[j], k, 4), bit_at(v5[j], k, 5)), or_(bit_at(v6[j], k, 6), bit_at(v7[j], k, 7)))
            plane[j] = or_(low, high)


@kernel((read_only(U8), writable(U8), I64), (read_only(U16), writable(U8), I64))
def levels_pack(levels: np.ndarray, out: np.ndarray, bits: int) -> None:
    """Pack the low `bits` bits of each level into bit planes.

    A block of 8 segments of n levels becomes `bits` planes of n bytes, lowest bit first; bit s of byte j of plane k
    is bit k of level j of segment s. `out` has bits * ceil(levels.size / 8) bytes.
    """
    full = PLANES * SEGMENT
    blocks = levels.size // full
    for i in range(blocks):
        block = out[i * bits * SEGMENT : (i + 1) * bits * SEGMENT]
        pack_planes(levels[i * full : (i + 1) * full], block, SEGMENT, bits)
    rest = levels.size - blocks * full
    if rest:
        n = (rest + PLANES - 1) // PLANES
        padded = np.zeros(PLANES * n, levels.dtype)
        padded[:rest] = levels[blocks * full :]
        pack_planes(padded, out[blocks * bits * SEGMENT :], n, bits)


@njit(inline="always")
def unpack_planes(packed: Any, levels: Any, n: int, bits: int) -> None:
    for s in range(PLANES):
        segment = levels[s * n : (s + 1) * n]
        segment[:] = 0
        for k in range(bits):
            plane = packed[k * n : (k + 1) * n]
            for j in range(n):
                segment[j] = or_(segment[j], bit_to(plane[j], s, k, segment[j]))


@kernel((read_only(U8), writable(U8), I64), (read_only(U8), writable(U16), I64))
def levels_unpack(packed: np.ndarray, levels: np.ndarray, bits: int) -> None:
    """The inverse of `levels_pack`."""
    full = PLANES * SEGMENT
    blocks = levels.size // full
    for i in range(blocks):
        block = packed[i * bits * SEGMENT : (i + 1) * bits * SEGMENT]
        unpack_planes(block, levels[i * full : (i + 1) * full], SEGMENT, bits)
    rest = levels.size - blocks * full
    if rest:
        n = (rest + PLANES - 1) // PLANES
        padded = np.empty(PLANES * n, levels.dtype)
        unpack_planes(packed[blocks * bits * SEGMENT :], padded, n, bits)
        levels[blocks * full :] = padded[:rest]


@kernel((read_only(U8), writable(F32), I64, F64), (read_only(U16), writable(F32), I64, F64))
def levels_scale(levels: np.ndarray, out: np.ndarray, count: int, step: float) -> None:
    """Write (level - count) * step, the product in float64: it neither overflows nor loses a tiny scale."""
    for i in range(levels.size):
        out[i] = np.float32(np.float64(np.int32(levels[i]) - np.int32(count)) * step)
