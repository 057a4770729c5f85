"""The hot loops of Elias codes (P. Elias, "Universal codeword sets", 1975); the rules are `testbed.codecs.kernels`'s.

A stream is a row of bits, the first in the lowest bit of the first byte. For each level that is not zero it has the
gap to it from the one before (from place -1 for the first), its sign (1: negative) and its magnitude; gap and magnitude
in the gamma code, n zeros, a one, the n bits of the number below its highest. The gap to the place after the last
element ends it. Levels -s .. s come raised, as l + s, in a byte each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit

from testbed.codecs.kernels.compiled import I64, U8, U64, kernel, read_only, writable
from testbed.codecs.kernels.lanes import add, and_, or_, shl, shr, sub, unary

_Z, _ONE, _SHORT, _SIX, _63, _64 = (np.uint64(n) for n in (0, 1, 2, 6, 63, 64))
_LONGEST = np.uint64(24)  # zeros that a code may begin with: a gap is at most a chunk of elements, about 2^20
MAX_CODE_BITS = 64  # of gap, sign and magnitude together: 2 * 20 + 1, 1, 13

_zeros = unary(U64, lambda builder, x: builder.cttz(x, ir.Constant(ir.IntType(1), 0)))  # below the lowest one
_high_zeros = unary(U64, lambda builder, x: builder.ctlz(x, ir.Constant(ir.IntType(1), 0)))


@njit(inline="always")
def _gamma(number: Any) -> Any:
    """(code, its bits) of a number from 1."""
    n = sub(_63, _high_zeros(number))
    below = sub(number, shl(_ONE, n))
    return or_(shl(_ONE, n), shl(below, add(n, _ONE))), add(add(n, n), _ONE)


@kernel((read_only(U8), writable(U64), I64))
def pack(raised: np.ndarray, words: np.ndarray, levels: int) -> int:
    """Code a stream of raised levels into words, of which there are enough; return how many bits."""
    codes, lengths = np.zeros(256, np.uint64), np.zeros(256, np.uint64)  # of sign and magnitude; of zero: no bits
    for level in range(1, levels + 1):
        code, length = _gamma(np.uint64(level))
        for sign in range(2):
            raised_level = levels - level if sign else levels + level
            codes[raised_level], lengths[raised_level] = or_(np.uint64(sign), shl(code, _ONE)), add(length, _ONE)
    word, filled, at, gap = _Z, _Z, 0, _Z
    for i in range(raised.size + 1):
        gap = add(gap, _ONE)
        place = raised[i] if i < raised.size else np.uint8(levels)
        if lengths[place] == _Z and i < raised.size:
            continue
        code, length = _gamma(gap)
        code = or_(code, shl(codes[place], length))
        length = add(length, lengths[place])
        word = or_(word, shl(code, filled))
        if filled + length >= _64:
            words[at] = word
            at += 1
            taken = sub(_64, filled)
            word = shr(code, taken) if taken < _64 else _Z
            filled = sub(length, taken)
        else:
            filled = add(filled, length)
        gap = _Z
    words[at] = word
    return int(64 * at + np.int64(filled))


@njit(inline="always")
def _window(words: Any, at: Any) -> Any:
    """64 bits of the stream from bit `at`."""
    k, shift = np.int64(shr(at, _SIX)), and_(at, _63)
    return or_(shr(words[k], shift), shl(shl(words[k + 1], _ONE), sub(_63, shift)))


@kernel((read_only(U64), I64, writable(U8), I64))
def unpack(words: np.ndarray, bits: int, raised: np.ndarray, levels: int) -> int:
    """Decode a stream of `bits` bits into raised levels; words has two zero words more. Returns the bits used or -1.

    -1: a gap beyond the stream's end, or a magnitude above `levels`.
    """
    raised[:] = np.uint8(levels)
    at, place, size = _Z, np.int64(-1), raised.size
    while np.int64(at) < bits:
        window = _window(words, at)
        n = _zeros(window)
        if n > _LONGEST:
            return -1
        gap = or_(shl(_ONE, n), and_(shr(window, add(n, _ONE)), sub(shl(_ONE, n), _ONE)))
        at = add(at, add(add(n, n), _ONE))
        place += np.int64(gap)
        if place >= size:
            return int(np.int64(at)) if place == size else -1
        window = _window(words, at)
        code = shr(window, _ONE)
        n = _zeros(code)
        if n > _SIX:
            return -1
        level = np.int64(or_(shl(_ONE, n), and_(shr(code, add(n, _ONE)), sub(shl(_ONE, n), _ONE))))
        if level > levels:
            return -1
        raised[place] = np.uint8(levels - level if and_(window, _ONE) == _ONE else levels + level)
        at = add(at, add(add(n, n), _SHORT))
    return -1
