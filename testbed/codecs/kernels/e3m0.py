"""The hot loops of E3M0; the rules are those of `testbed.codecs.kernels`, but for the packing of `codes`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.codes import layer_at, look_up, pack_codes
from testbed.codecs.kernels.compiled import F32, I64, U8, kernel, read_only, writable
from testbed.codecs.kernels.lanes import abs_bits, bits_of, float_of, larger, low_byte, or_, shr, sub, where_less
from testbed.codecs.kernels.threads import in_chunks

BITS = 4
TOP = 7  # the code of a layer's largest magnitude M
POWERS = [0.0, *(2.0 ** (code - TOP) for code in range(1, TOP + 1))]
VALUES = np.array([*POWERS, *(-power for power in POWERS)], np.float32)  # what codes stand for where M is 1

_BLOCK = 8192  # elements whose codes are packed while they lie in the first cache
_BELOW = np.nextafter(np.float32(2.0**-TOP), np.float32(0))  # what is above it is not 0
_HALFWAY = np.float32(4 / 3)  # 1.5 * 2^k times this has the next exponent
_ZERO, _ONE = np.float32(0), np.float32(1)
_FRACTION_BITS, _LOWEST, _1, _NEGATIVE = (np.uint32(n) for n in (23, 127 - TOP, 1, 8))


def pack(x: np.ndarray, packed: np.ndarray, scales: np.ndarray, ends: np.ndarray) -> None:
    """Write the codes of a vector whose layers end there, each on its scale: its largest magnitude, 0 if that is 0."""

    def code(start: int, stop: int) -> None:
        pack_chunk(x[start:stop], packed[start // 2 :], scales, ends, start)

    in_chunks(code, x.size)


def unpack(packed: np.ndarray, y: np.ndarray, scales: np.ndarray, ends: np.ndarray) -> None:
    """Write what each code stands for: a power of two times the scale of its layer, or 0."""
    look_up(packed, y, np.outer(scales, VALUES).reshape(-1), ends, BITS)


# --- chunks -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _code(x: Any, codes: Any, scale: Any) -> None:
    for i in range(x.size):
        ratio = float_of(abs_bits(x[i])) / scale
        exponent = sub(larger(shr(bits_of(ratio * _HALFWAY), _FRACTION_BITS), _LOWEST), _LOWEST)
        power = larger(exponent, where_less(_BELOW, ratio, _1))
        codes[i] = low_byte(or_(power, where_less(x[i], _ZERO, _NEGATIVE)))


@kernel((read_only(F32), writable(U8), read_only(F32), read_only(I64), I64))
def pack_chunk(x: np.ndarray, out: np.ndarray, scales: np.ndarray, ends: np.ndarray, first: int) -> None:
    """See `pack`; `first` is the place of x[0], an even one."""
    codes, layer = np.zeros(_BLOCK, np.uint8), 0
    for begin in range(0, x.size, _BLOCK):
        part = x[begin : begin + _BLOCK]
        start = 0
        while start < part.size:
            layer = layer_at(ends, first + begin + start, layer)
            stop = min(ends[layer] - first - begin, part.size)
            scale = scales[layer] if scales[layer] > _ZERO else _ONE  # zeros have zeros for codes
            _code(part[start:stop], codes[start:stop], scale)
            start = stop
        filled = part.size + part.size % 2
        codes[part.size : filled] = 0
        pack_codes(codes[:filled], out[begin // 2 :], BITS)
