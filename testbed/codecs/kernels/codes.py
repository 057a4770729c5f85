"""Codes of 2, 4 or 8 bits, the first of a byte in its lowest bits, and what each stands for in its layer.

These bytes hold neighbours, as their formats have it and against rule 2 of `testbed.codecs.kernels`; codes that have a
byte each are packed by shifts of words of two or four. A byte may belong to several layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import F32, I64, U8, kernel, read_only, writable
from testbed.codecs.kernels.lanes import low_byte, or_, shr
from testbed.codecs.kernels.threads import CHUNK, in_chunks

_4 = np.uint16(4)
_6, _12, _18 = (np.uint32(n) for n in (6, 12, 18))


def pack(codes: np.ndarray, packed: np.ndarray, bits: int) -> None:
    """Pack codes (uint8 [so many as fill `packed`]) of 2 or 4 bits."""
    in_chunks(lambda start, stop: pack_chunk(codes[start:stop], packed[bits * start // 8 :], bits), codes.size)


def look_up(packed: np.ndarray, y: np.ndarray, tables: np.ndarray, ends: np.ndarray, bits: int) -> None:
    """Write what each packed code stands for in its layer.

    Parameters
    ----------
    tables : float32 [layers * 2^bits]
    ends : int64 [layers], where in y each layer ends
    """
    in_chunks(
        lambda start, stop: look_up_chunk(packed[bits * start // 8 :], y[start:stop], tables, ends, start, bits), y.size
    )


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def pack_codes(codes: Any, out: Any, bits: int) -> None:
    """Pack codes that fill whole bytes."""
    if bits == 4:
        pairs = codes.view(np.uint16)
        for j in range(pairs.size):
            out[j] = low_byte(or_(pairs[j], shr(pairs[j], _4)))
    else:
        fours = codes.view(np.uint32)
        for j in range(fours.size):
            four = fours[j]
            out[j] = low_byte(or_(or_(four, shr(four, _6)), or_(shr(four, _12), shr(four, _18))))


@kernel((read_only(U8), writable(U8), I64))
def pack_chunk(codes: np.ndarray, out: np.ndarray, bits: int) -> None:
    """See `pack`."""
    pack_codes(codes, out, bits)


@njit(inline="always")
def layer_at(ends: Any, place: int, layer: int) -> int:
    """The layer of the element at `place`, which is not before `layer`."""
    while ends[layer] <= place:
        layer += 1
    return layer


@njit(inline="always")
def _some(packed: Any, out: Any, start: int, stop: int, table: Any, bits: int) -> None:
    """Write elements `start` to `stop`, each by itself."""
    for i in range(start, stop):
        out[i] = table[(packed[i * bits // 8] >> (i * bits % 8)) & ((1 << bits) - 1)]


@njit(inline="always")
def _bytes(packed: Any, out: Any, table: Any, bits: int) -> None:
    """Write the elements of whole bytes."""
    per_byte = 8 // bits
    for j in range(packed.size):
        byte = packed[j]
        for k in range(per_byte):
            out[per_byte * j + k] = table[(byte >> (bits * k)) & ((1 << bits) - 1)]


@njit(inline="always")
def _look_up(packed: Any, out: Any, start: int, stop: int, table: Any, bits: int) -> None:
    """Write elements `start` to `stop`, of which the first and the last few may share a byte with another layer's."""
    per_byte = 8 // bits
    first = min((start + per_byte - 1) // per_byte * per_byte, stop)
    last = max(stop // per_byte * per_byte, first)
    _some(packed, out, start, first, table, bits)
    _bytes(packed[first // per_byte : last // per_byte], out[first:last], table, bits)
    _some(packed, out, last, stop, table, bits)


@kernel((read_only(U8), writable(F32), read_only(F32), read_only(I64), I64, I64))
def look_up_chunk(
    packed: np.ndarray, out: np.ndarray, tables: np.ndarray, ends: np.ndarray, first: int, bits: int
) -> None:
    """See `look_up`; `first` is the place of out[0], whose code begins a byte."""
    count, layer, start = 1 << bits, 0, 0
    while start < out.size:
        layer = layer_at(ends, first + start, layer)
        stop, table = min(ends[layer] - first, out.size), tables[layer * count : (layer + 1) * count]
        if bits == 2:
            _look_up(packed, out, start, stop, table, 2)
        elif bits == 4:
            _look_up(packed, out, start, stop, table, 4)
        else:
            _look_up(packed, out, start, stop, table, 8)
        start = stop


assert CHUNK % 8 == 0  # a chunk begins a byte
