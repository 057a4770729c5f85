"""The hot loops of the adaptive quantizer; the rules are those of `testbed.codecs.kernels`.

A level l, -127 .. 127, is stored as the symbol l + 127. Products are made in float64, where no step is too small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import F32, F64, U8, kernel, read_only, writable
from testbed.codecs.kernels.threads import in_chunks

MIDDLE = 127  # the symbol of level 0
SYMBOLS = 2 * MIDDLE + 1


def quantize(x: np.ndarray, symbols: np.ndarray, rest: np.ndarray | None, step: float, top: float) -> None:
    """Write a layer's symbols: of the multiples of `step` nearest to each x, at most `top` of them.

    Where there is a rest, it becomes what they leave of x.
    """

    def find(start: int, stop: int) -> None:
        if rest is None:
            quantize_chunk(x[start:stop], symbols[start:stop], step, top)
        else:
            quantize_rest_chunk(x[start:stop], symbols[start:stop], rest[start:stop], step, top)

    in_chunks(find, x.size)


def reconstruct(symbols: np.ndarray, y: np.ndarray, step: float) -> None:
    """Write a layer: the multiple of `step` of each symbol."""
    in_chunks(lambda start, stop: reconstruct_chunk(symbols[start:stop], y[start:stop], step), y.size)


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _level(x: Any, inverse: Any, top: Any) -> Any:
    return np.int32(min(max(np.rint(np.float64(x) * inverse), -top), top))


@njit(inline="always")
def _value(level: Any, step: Any) -> Any:
    return np.float32(np.float64(level) * step)


@kernel((read_only(F32), writable(U8), F64, F64))
def quantize_chunk(x: np.ndarray, symbols: np.ndarray, step: float, top: float) -> None:
    """Write the symbol of the multiple of `step` that is nearest to each x, at most `top` of them."""
    inverse = 1 / step if step > 0 else 0.0
    for i in range(x.size):
        symbols[i] = np.uint8(_level(x[i], inverse, top) + MIDDLE)


@kernel((read_only(F32), writable(U8), writable(F32), F64, F64))
def quantize_rest_chunk(x: np.ndarray, symbols: np.ndarray, rest: np.ndarray, step: float, top: float) -> None:
    """`quantize_chunk`, and write what the symbols leave of x."""
    inverse = 1 / step if step > 0 else 0.0
    for i in range(x.size):
        level = _level(x[i], inverse, top)
        symbols[i] = np.uint8(level + MIDDLE)
        rest[i] = x[i] - _value(level, step)


@kernel((read_only(U8), writable(F32), F64))
def reconstruct_chunk(symbols: np.ndarray, out: np.ndarray, step: float) -> None:
    """Write the multiple of `step` of each symbol."""
    for i in range(out.size):
        out[i] = _value(np.int32(symbols[i]) - MIDDLE, step)
