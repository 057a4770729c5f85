"""The hot loops of half precision; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from testbed.codecs.kernels.compiled import F32, U16, kernel, read_only, writable
from testbed.codecs.kernels.lanes import abs_bits, larger, unary
from testbed.codecs.kernels.threads import in_chunks

_0 = np.uint32(0)


def pack(x: np.ndarray, halves: np.ndarray, factor: np.float32, limit: np.float32) -> None:
    """Write the bits (uint16) of the halves nearest to x * factor, ties to even, cut to +-limit."""
    in_chunks(lambda start, stop: pack_chunk(x[start:stop], halves[start:stop], factor, limit), x.size)


def unpack(halves: np.ndarray, y: np.ndarray, factor: np.float32) -> int:
    """Write the float32 of each half times `factor`; return the bits of the largest magnitude."""
    parts = in_chunks(lambda start, stop: unpack_chunk(halves[start:stop], y[start:stop], factor), y.size)
    return max(parts, default=0)


# --- chunks -----------------------------------------------------------------------------------------------------


def _to_half(builder: Any, x: Any) -> Any:
    return builder.bitcast(builder.fptrunc(x, ir.HalfType()), ir.IntType(16))


def _from_half(builder: Any, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())


half_bits = unary(U16, _to_half)  # the bits of the nearest half, ties to even
half_value = unary(F32, _from_half)  # the float32 of a half's bits


@kernel((read_only(F32), writable(U16), F32, F32))
def pack_chunk(x: np.ndarray, out: np.ndarray, factor: float, limit: float) -> None:
    """Write the bits of the half-precision float nearest to x * factor, cut to +-limit."""
    for i in range(x.size):
        out[i] = half_bits(max(min(x[i] * factor, limit), -limit))


@kernel((read_only(U16), writable(F32), F32))
def unpack_chunk(halves: np.ndarray, out: np.ndarray, factor: float) -> np.uint32:
    """Write the float32 of each half times `factor`; return the bits of the largest magnitude."""
    largest = _0
    for i in range(out.size):
        value = half_value(halves[i]) * factor
        largest = larger(largest, abs_bits(value))
        out[i] = value
    return largest
