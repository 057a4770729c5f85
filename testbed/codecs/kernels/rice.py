"""The hot loops of Rice codes.

The rules of `testbed.codecs.kernels` hold here too, but for planes, which a code whose length depends on its number
cannot have: the streams of bits are written and read in words of 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit

from testbed.codecs.kernels.compiled import I64, U8, U32, U64, kernel, read_only, writable
from testbed.codecs.kernels.lanes import shr, unary

MAX_PARAMETER = 31  # of a Rice code of 32-bit numbers

_NONE = np.uint32(0)
_ZERO, _ONE, _6, _32, _63, _64 = (np.uint64(n) for n in (0, 1, 6, 32, 63, 64))

# How many zero bits are below the lowest one bit of a word that is not zero.
_trailing_zeros = unary(I64, lambda builder, word: builder.cttz(word, ir.Constant(ir.IntType(1), 1)))


@njit(inline="always")
def _quotient_sum(numbers: Any, parameter: Any) -> Any:
    total = np.int64(0)
    for i in range(numbers.size):
        total += np.int64(shr(numbers[i], parameter))
    return total


@kernel((read_only(U32), read_only(I64), writable(U8)))
def plan(numbers: np.ndarray, counts: np.ndarray, parameters: np.ndarray) -> tuple[int, int]:
    """Find each section's best parameter; return the bits of all remainders and of all quotients.

    n numbers cost n * (parameter + 1) + the sum of their quotients. That is convex in the parameter, and rises from
    log2(mean) + 1 on, so a descent from there ends at the smallest.
    """
    remainder_bits, quotient_bits, start = 0, 0, 0
    for section in range(counts.size):
        count = counts[section]
        part = numbers[start : start + count]
        start += count
        mean = _quotient_sum(part, _NONE) // max(count, 1)
        parameter = 0
        while mean >> parameter > 0 and parameter < MAX_PARAMETER:
            parameter += 1
        quotients = _quotient_sum(part, np.uint32(parameter))
        while parameter > 0:
            more = _quotient_sum(part, np.uint32(parameter - 1))
            if more - quotients >= count:
                break
            parameter, quotients = parameter - 1, more
        parameters[section] = parameter
        remainder_bits += count * parameter
        quotient_bits += count + quotients
    return remainder_bits, quotient_bits


@kernel((read_only(U32), read_only(I64), read_only(U8), writable(U64), writable(U64)))
def pack(
    numbers: np.ndarray, counts: np.ndarray, parameters: np.ndarray, remainders: np.ndarray, quotients: np.ndarray
) -> None:
    """Write each number as its lowest `parameter` bits, and as many zeros as the rest says, then a one.

    Parameters
    ----------
    remainders, quotients : uint64, zeros, of the bits that `plan` returns and a word more
    """
    at, mark, i = _ZERO, _ZERO, 0
    for section in range(counts.size):
        parameter = np.uint64(parameters[section])
        mask = (_ONE << parameter) - _ONE
        for _ in range(counts[section]):
            number = np.uint64(numbers[i])
            remainder, shift = number & mask, at & _63
            remainders[at >> _6] |= remainder << shift
            if shift + parameter > _64:
                remainders[(at >> _6) + _ONE] |= remainder >> (_64 - shift)
            at += parameter
            mark += number >> parameter
            quotients[mark >> _6] |= _ONE << (mark & _63)
            mark += _ONE
            i += 1


@kernel((read_only(U64), read_only(U64), read_only(I64), read_only(U8), writable(U32)))
def unpack(
    remainders: np.ndarray, quotients: np.ndarray, counts: np.ndarray, parameters: np.ndarray, out: np.ndarray
) -> int:
    """The inverse of `pack`; return how many bits of the quotients it took.

    Returns -1 when they end too soon or go on after the last number, or when a number has more than 32 bits.
    """
    at, following, i = _ZERO, 0, 0  # bits of the remainders, of the quotients; numbers
    index, word = 0, quotients[0]
    for section in range(counts.size):
        parameter = np.uint64(parameters[section])
        mask = (_ONE << parameter) - _ONE
        for _ in range(counts[section]):
            while word == _ZERO:
                index += 1
                if index == quotients.size:
                    return -1
                word = quotients[index]
            mark = 64 * index + _trailing_zeros(word)
            word &= word - _ONE
            quotient = np.uint64(mark - following)
            following = mark + 1
            shift = at & _63
            remainder = remainders[at >> _6] >> shift
            if shift + parameter > _64:
                remainder |= remainders[(at >> _6) + _ONE] << (_64 - shift)
            at += parameter
            if quotient >> (_32 - parameter) != _ZERO:
                return -1
            out[i] = np.uint32((quotient << parameter) | (remainder & mask))
            i += 1
    if word != _ZERO:
        return -1
    return following
