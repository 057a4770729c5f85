"""Planar blocks, bit planes and counter-based random numbers; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import I64, U8, U16, kernel, read_only, writable
from testbed.codecs.kernels.lanes import bit_at, bit_to, mul, or_, shr, xor
from testbed.codecs.kernels.threads import CHUNK, in_chunks

SEGMENT = 1024  # elements of one segment of a full planar block
PLANES = 8  # segments of a block of bit planes: the bits of a byte

_11, _14, _15, _17 = (np.uint32(n) for n in (11, 14, 15, 17))
# Rounds of `triple32` (C. Wellons, "Prospecting for hash functions", 2018).
R1, R2, R3 = np.uint32(0xED5AD4BB), np.uint32(0xAC4C1B51), np.uint32(0x31848BAB)


@njit(inline="always")
def hashed(counter: Any, key: Any) -> Any:
    """32 random bits for a counter; the key enters after the first round (added, it would only shift the stream)."""
    h = xor(counter, shr(counter, _17))
    h = xor(mul(h, R1), key)
    h = xor(h, shr(h, _11))
    h = mul(h, R2)
    h = xor(h, shr(h, _15))
    h = mul(h, R3)
    return xor(h, shr(h, _14))


# --- bit planes -------------------------------------------------------------------------------------------------


def plane_bytes(size: int, bits: int) -> int:
    """Bytes of a run of so many levels of so many bits."""
    return bits * -(-size // PLANES)


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
def pack_chunk(levels: np.ndarray, out: np.ndarray, bits: int) -> None:
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
def unpack_chunk(packed: np.ndarray, levels: np.ndarray, bits: int) -> None:
    """The inverse of `pack_chunk`."""
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


def pack(levels: np.ndarray, planes: np.ndarray, bits: int) -> None:
    """`pack_chunk` of a layer's levels."""
    in_chunks(lambda start, stop: pack_chunk(levels[start:stop], planes[bits * start // PLANES :], bits), levels.size)


def unpack(planes: np.ndarray, levels: np.ndarray, bits: int) -> None:
    """The inverse of `pack`."""
    in_chunks(lambda start, stop: unpack_chunk(planes[bits * start // PLANES :], levels[start:stop], bits), levels.size)


assert CHUNK % (PLANES * SEGMENT) == 0  # a chunk's levels begin at a block
