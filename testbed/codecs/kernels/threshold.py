"""The hot loops of values in multiples of a unit; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

import numpy as np
from numba import types

from testbed.codecs.kernels.compiled import F32, F64, I64, U32, kernel, read_only, writable


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
