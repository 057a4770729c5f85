"""Rice codes of small numbers (R. Rice, "Some practical universal noiseless coding techniques", JPL, 1979).

Numbers come in sections, each with a parameter k of its own, the one that makes it shortest. A number is coded as its
lowest k bits, the remainder, and the rest in unary, the quotient. Gaps between places that are kept with equal
chance are geometric; for those Rice codes are within 1 % of the entropy (11.5 bit at one in 1,000, where no
arrangement of places costs more than 12). With k = 0 the quotients are the bitmap of what is kept.

The buffer, numbers little-endian:

1. parameters: one byte a section, 0 to 31;
2. remainders: k bits for each number, the lowest bit of the first number in the lowest bit of the first byte; the
   last byte's upper bits are 0;
3. quotients: for each number as many zeros as its quotient, then a one, in the same order of bits; the last byte holds
   the last one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from testbed.codecs.base import wire_array
from testbed.codecs.buffers import Allocate
from testbed.codecs.kernels import rice as kernels
from testbed.errors import CodecError


def pack(numbers: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
    """Code numbers; the bytes as a uint8 array.

    Parameters
    ----------
    numbers : uint32 [sum of counts]
    counts : int64 [sections], the numbers in each
    allocate : memory for the buffer and what is needed on the way
    """
    parameters = np.empty(counts.size, np.uint8)
    remainder_bits, quotient_bits = kernels.plan(numbers, counts, parameters)
    remainders, quotients = _zeros(remainder_bits, allocate), _zeros(quotient_bits, allocate)
    kernels.pack(numbers, counts, parameters, remainders, quotients)
    parts = parameters, _bytes(remainders, remainder_bits), _bytes(quotients, quotient_bits)
    return np.concatenate(parts, out=allocate(sum(part.size for part in parts), np.uint8))


def unpack(buffer: Any, counts: np.ndarray, name: str, allocate: Allocate = np.empty) -> np.ndarray:
    """The numbers (uint32 [sum of counts]) of a buffer from the wire; `name` says in errors what they are.

    Raises
    ------
    CodecError : it is not the code of that many numbers of 32 bits; found before anything larger than the buffer
        is allocated
    """
    data = _wire_bytes(buffer, name)
    parameters, data = data[: counts.size], data[counts.size :]
    if parameters.size < counts.size or (parameters > kernels.MAX_PARAMETER).any():
        raise CodecError(f"{name}: {counts.size} Rice parameters of 0 to {kernels.MAX_PARAMETER} expected")
    total = int(counts.sum())
    remainder_bits = int(counts @ parameters.astype(np.int64))
    remainder_bytes = -(-remainder_bits // 8)
    if data.size < remainder_bytes + -(-total // 8):
        raise CodecError(f"{name}: {data.size} bytes are too few for {total} numbers")
    remainders, quotients = _words(data[:remainder_bytes], allocate), _words(data[remainder_bytes:], allocate)
    numbers = allocate(total, np.uint32)
    bits = kernels.unpack(remainders, quotients, counts, parameters, numbers)
    unused = remainders[remainder_bits // 64] >> np.uint64(remainder_bits % 64)
    if bits < 0 or unused or -(-bits // 8) != data.size - remainder_bytes:
        raise CodecError(f"{name}: not the Rice code of {total} numbers")
    return numbers


def _wire_bytes(buffer: Any, name: str) -> np.ndarray:
    """View a buffer from the wire as however many bytes it has; CodecError when it is none."""
    try:
        return wire_array(buffer, np.uint8, memoryview(buffer).nbytes, name)
    except TypeError as error:
        raise CodecError(f"{name}: bytes expected, found {type(buffer).__name__}") from error


def _bytes(words: np.ndarray, bits: int) -> np.ndarray:
    return words.view(np.uint8)[: -(-bits // 8)]


def _words(data: np.ndarray, allocate: Allocate) -> np.ndarray:
    """The bytes in words of 64 bits, with at least one zero bit after them."""
    words = _zeros(8 * data.size, allocate)
    words.view(np.uint8)[: data.size] = data
    return words


def _zeros(bits: int, allocate: Allocate) -> np.ndarray:
    """Words of 64 bits that have room for so many bits and one more."""
    words = allocate(bits // 64 + 1, np.uint64)
    words.fill(0)
    return words
