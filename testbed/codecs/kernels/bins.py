"""The hot loops of means of bins; the rules are those of `testbed.codecs.kernels`, but for the packing of `codes`.

A sum goes in float64 from the first value of its layer to the last, so that means are the same to the bit anywhere.
Each addition waits for the one before it, and these sums, not memory, take most of the time: threads would not help.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.buffers import Allocate
from testbed.codecs.kernels import codes
from testbed.codecs.kernels.compiled import F32, F64, I64, U8, kernel, read_only, writable

_OWN = np.eye(4)  # 1 where a bin is one's own


def pack(
    x: np.ndarray, ends: np.ndarray, sigmas: float, bits: int, means: np.ndarray, packed: np.ndarray, allocate: Allocate
) -> None:
    """Find each value's bin of 2^bits that span so many standard deviations around its layer's mean, and their means.

    Parameters
    ----------
    x : float32 [n], finite
    ends : int64 [layers], where in x each layer ends
    means : float32 [layers * 2^bits]; packed : uint8 [ceil(n * bits / 8)]
    """
    bins = packed if bits == 8 else allocate(8 // bits * packed.size, np.uint8)
    bins[x.size :] = 0
    measure(x, ends, sigmas, means, bins, bits)
    if bits < 8:
        codes.pack(bins, packed, bits)


@njit(inline="always")
def _sum(x: Any) -> float:
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i])
    return total


@njit(inline="always")
def _squares(x: Any, centre: float) -> float:
    total = 0.0
    for i in range(x.size):
        off = np.float64(x[i]) - centre
        total += off * off
    return total


@njit(inline="always")
def _add_four(x: Any, bins: Any, sums: Any, members: Any) -> None:
    """`_add` where there are four bins: the sums stay in registers, since most values follow one of their own bin.

    Adding 0 or -0 to the other sums leaves them as they are: none is ever -0.
    """
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(x.size):
        value, own = np.float64(x[i]), _OWN[bins[i]]
        a += value * own[0]
        b += value * own[1]
        c += value * own[2]
        d += value * own[3]
    sums[0], sums[1], sums[2], sums[3] = a, b, c, d
    for k in range(4):
        here = 0
        for i in range(bins.size):
            here += bins[i] == k
        members[k] = here


@njit(inline="always")
def _add(x: Any, bins: Any, sums: Any, members: Any) -> None:
    """Each bin's sum and number of values."""
    sums[:] = 0.0
    members[:] = 0
    for i in range(x.size):
        sums[bins[i]] += np.float64(x[i])
        members[bins[i]] += 1


@kernel((read_only(F32), read_only(I64), F64, writable(F32), writable(U8), I64))
def measure(x: np.ndarray, ends: np.ndarray, sigmas: float, means: np.ndarray, bins: np.ndarray, bits: int) -> None:
    """Write each layer's means, 0 of a bin without a value, and each value's bin (uint8 [n]); see `pack`."""
    count, start = 1 << bits, 0
    half, top = np.float64(count // 2), np.float64(count - 1)
    sums, members = np.empty(count, np.float64), np.empty(count, np.int64)
    for layer in range(ends.size):
        part, own = x[start : ends[layer]], bins[start : ends[layer]]
        centre = _sum(part) / max(part.size, 1)
        deviation = sqrt(_squares(part, centre) / max(part.size - 1, 1))
        width = sigmas / count * deviation if deviation > 0 else 1.0
        for i in range(part.size):
            place = np.rint((np.float64(part[i]) - centre) / width) + half
            own[i] = np.uint8(np.int32(min(max(place, 0.0), top)))
        if count == 4:
            _add_four(part, own, sums, members)
        else:
            _add(part, own, sums, members)
        for k in range(count):
            means[layer * count + k] = np.float32(sums[k] / max(members[k], 1))
        start = ends[layer]
