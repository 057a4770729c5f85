"""The hot loops of sums of ternary messages; the rules are those of `testbed.codecs.kernels`.

Levels are kept raised: a sum of n digits, each -1, 0 or 1, is stored as sum + n, in 0 .. 2n, unsigned. Adding two
sums adds their raised levels, and packing needs no sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.buffers import Allocate
from testbed.codecs.kernels import planar
from testbed.codecs.kernels.compiled import F32, F64, I64, U8, U16, kernel, read_only, writable
from testbed.codecs.kernels.lanes import add, like, mul, shr, sub, where_equal
from testbed.codecs.kernels.planar import SEGMENT
from testbed.codecs.kernels.ternary import TRITS
from testbed.codecs.kernels.threads import in_chunks

_1, _2, _3, _9, _THIRD = (np.uint16(n) for n in (1, 2, 3, 9, 171))  # b * 171 >> 9 is b // 3 for a byte


def add_trits(trits: np.ndarray, raised: np.ndarray) -> None:
    """Add a layer's packed digits, each raised by one, to its levels."""
    in_chunks(lambda start, stop: add_chunk(trits[start // TRITS :], raised[start:stop]), raised.size)


def unpack(planes: np.ndarray, y: np.ndarray, count: int, bits: int, step: float, allocate: Allocate) -> int:
    """Write a layer: (level - count) * step for each packed level; the largest level."""
    raised = raised_of(planes, y.size, bits, allocate)
    scale(raised, y, count, step)
    return int(raised.max(initial=0))


def raised_of(planes: np.ndarray, size: int, bits: int, allocate: Allocate) -> np.ndarray:
    """A layer's raised levels [size], in the smallest unsigned type that holds them."""
    raised = allocate(size, np.uint8 if bits <= planar.PLANES else np.uint16)
    planar.unpack(planes, raised, bits)
    return raised


def scale(raised: np.ndarray, y: np.ndarray, count: int, step: float) -> None:
    """Write a layer: (level - count) * step, the product in float64: it neither overflows nor loses a tiny scale."""
    in_chunks(lambda start, stop: scale_chunk(raised[start:stop], y[start:stop], count, step), y.size)


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
def add_chunk(packed: np.ndarray, levels: np.ndarray) -> None:
    """Add packed digits (see `ternary.pack_chunk`), each raised by one, to the levels."""
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


@kernel((read_only(U8), writable(F32), I64, F64), (read_only(U16), writable(F32), I64, F64))
def scale_chunk(levels: np.ndarray, out: np.ndarray, count: int, step: float) -> None:
    """Write (level - count) * step, the product in float64: it neither overflows nor loses a tiny scale."""
    for i in range(levels.size):
        out[i] = np.float32(np.float64(np.int32(levels[i]) - np.int32(count)) * step)
