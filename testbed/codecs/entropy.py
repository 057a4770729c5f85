"""Entropy coding of small alphabets: a static order-0 model a run of symbols, coded with rANS.

A run, e.g. one layer's packed trits, is coded on its own, since layers differ in their statistics:

- byte 0 says in which form it is: 0 plain, 1 constant, 2 coded; the encoder takes the shortest;
- plain: the symbols as they are; constant: one byte, the symbol that all of them are;
- coded: the model, then the streams.
  The model is a bit map of the symbols that occur, ceil(alphabet / 8) bytes, lowest bit first; their frequencies'
  low 7 bits, one byte each, the top bit set where more follow; the rest of those frequencies, one byte each.
  Frequencies sum to 4096. The streams (`testbed.codecs.entropy_kernels`), each of `STREAM` symbols but for the last,
  are preceded by the number of 16-bit words of each, as little-endian uint32.

How many symbols there are is not in the message: both sides know it from the model's layout.

Five trits a byte are 243 symbols, so a byte model sees most of what five trits hold: at 2.5 sigma, 1.221 bits an
element of a Gaussian gradient, where the trits' own entropy is 1.219 and plain packing takes 1.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from testbed.codecs import entropy_kernels, kernels, lanes
from testbed.codecs.base import Buffers, Key, WireBuffers, stretches
from testbed.codecs.entropy_kernels import STATE_WORDS, TOTAL
from testbed.codecs.threads import CHUNK, in_chunks
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError
from testbed.layout import Layout

PLAIN, CONSTANT, CODED = 0, 1, 2
ELEMENTS = 5  # a symbol is as much work as so many elements of other kernels, and a packed trit holds as many
STREAM = CHUNK // ELEMENTS  # symbols of a stream; streams are coded on several threads
_LOW_BITS, _MORE = 7, 0x80


def worth_coding(plain_bytes: int, coded_bytes: int, seconds: float, rate_mbit: float) -> bool:
    """Whether coding pays: `seconds` of coding and decoding against what a link of `rate_mbit` needs for the rest."""
    return seconds < (plain_bytes - coded_bytes) * 8e-6 / rate_mbit


def pack_symbols(symbols: np.ndarray, alphabet: int, name: str = "symbols") -> np.ndarray:
    """Code a run of symbols in the shortest of the three forms.

    Parameters
    ----------
    symbols : uint8 [n], each below `alphabet`
    alphabet : 1 to 256
    name : whose they are, for an error

    Raises
    ------
    CodecError : a symbol is not of the alphabet
    """
    counts = _counts(symbols)
    if counts[alphabet:].any():
        raise CodecError(f"{name}: a symbol beyond 0 .. {alphabet - 1}")
    present = np.flatnonzero(counts)
    if present.size == 1:
        return np.array([CONSTANT, present[0]], np.uint8)
    if present.size > 1:
        frequencies = np.zeros(256, np.int64)
        entropy_kernels.quantize_counts(counts, frequencies)
        model = _pack_model(frequencies, alphabet)
        expected = model.size + (counts[present] * np.log2(TOTAL / frequencies[present])).sum() / 8
        if expected < symbols.size:
            coded = np.concatenate([[np.uint8(CODED)], model, *_streams(symbols, frequencies)])
            if coded.size <= symbols.size:
                return coded
    return np.concatenate([[np.uint8(PLAIN)], symbols])


def unpack_symbols(buffer: Any, count: int, alphabet: int, name: str = "symbols") -> np.ndarray:
    """The inverse of `pack_symbols`: uint8 [count]; CodecError when the buffer is not `count` symbols, coded."""
    cursor = _Cursor(buffer, name)
    symbols = np.empty(count, np.uint8)
    _unpack(cursor, symbols, alphabet)
    cursor.finish()
    return symbols


class SymbolRuns:
    """Several runs of symbols of one alphabet as one buffer.

    Parameters
    ----------
    alphabet : 1 to 256
    names : whose each run is, for errors
    lengths : symbols of each run
    """

    def __init__(self, alphabet: int, names: Sequence[str], lengths: Sequence[int]) -> None:
        lanes.warm_up()
        self.alphabet = alphabet
        self._runs = tuple(zip(names, stretches(lengths), strict=True))
        self._size = sum(lengths)

    def pack(self, symbols: np.ndarray) -> np.ndarray:
        """Code symbols [sum of the lengths] run by run; CodecError when one is not of the alphabet."""
        packed = [pack_symbols(symbols[run], self.alphabet, name) for name, run in self._runs]
        return np.concatenate(packed) if packed else np.empty(0, np.uint8)

    def unpack(self, buffer: Any) -> np.ndarray:
        """The inverse of `pack`: uint8 [sum of the lengths]; CodecError names the run that is malformed."""
        cursor = _Cursor(buffer, "symbols")
        symbols = np.empty(self._size, np.uint8)
        for name, run in self._runs:
            cursor.name = name
            _unpack(cursor, symbols[run], self.alphabet)
        cursor.finish()
        return symbols


class EntropyCoded:
    """A codec with the last buffer of its messages, which holds symbols, entropy coded.

    Parameters
    ----------
    codec : makes and reads the plain messages
    runs : how the last buffer divides; None for a ternary codec: a run of bytes of five trits a layer
    """

    def __init__(self, codec: Any, runs: SymbolRuns | None = None) -> None:
        self.codec = codec
        self.layout: Layout = codec.layout
        self.runs = runs or trit_runs(codec)

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """See `Codec.encode`."""
        return self.pack(self.codec.encode(vector, key))

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Codec.decode`."""
        return self.codec.decode(self.unpack(buffers), out)

    def pack(self, buffers: Buffers) -> Buffers:
        """A message of the codec with its symbols coded."""
        return [*buffers[:-1], self.runs.pack(buffers[-1])]

    def unpack(self, buffers: WireBuffers) -> list[Any]:
        """The codec's own message; CodecError when the symbols are malformed. The other buffers are not looked at."""
        if not buffers:
            raise CodecError("a message without buffers")
        return [*buffers[:-1], self.runs.unpack(buffers[-1])]


def trit_runs(codec: TritFormat) -> SymbolRuns:
    """The runs of a ternary codec's messages: bytes of five trits, layer by layer."""
    names = [f"layer {layer.name}" for layer in codec.ternary]
    return SymbolRuns(kernels.MAX_TRIT_BYTE + 1, names, [run.stop - run.start for run in codec.runs])


# --- the model -----------------------------------------------------------------------------------------------------


def _pack_model(frequencies: np.ndarray, alphabet: int) -> np.ndarray:
    present = frequencies > 0
    kept = frequencies[present]
    long = kept >> _LOW_BITS > 0
    low = kept & (_MORE - 1) | np.where(long, _MORE, 0)
    bits = np.packbits(present[:alphabet], bitorder="little")
    return np.concatenate([bits, low.astype(np.uint8), (kept[long] >> _LOW_BITS).astype(np.uint8)])


def _unpack_model(cursor: _Cursor, alphabet: int) -> tuple[np.ndarray, np.ndarray]:
    """The symbols that occur, and their frequencies."""
    bits = np.unpackbits(cursor.take(-(-alphabet // 8)), bitorder="little")
    present = np.flatnonzero(bits)
    if present.size < 2 or present[-1] >= alphabet:
        raise CodecError(f"{cursor.name}: a model of {present.size} symbols of an alphabet of {alphabet}")
    low = cursor.take(present.size)
    frequencies = (low & (_MORE - 1)).astype(np.int64)
    long = low >= _MORE
    frequencies[long] |= cursor.take(int(long.sum())).astype(np.int64) << _LOW_BITS
    if frequencies.min() < 1 or frequencies.sum() != TOTAL:
        raise CodecError(f"{cursor.name}: the frequencies of a model are at least 1 and sum to {TOTAL}")
    return present, frequencies


# --- streams ---------------------------------------------------------------------------------------------------------


def _counts(symbols: np.ndarray) -> np.ndarray:
    """How often each symbol occurs, int64 [256]."""

    def count(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(256, np.int64)
        entropy_kernels.count_symbols(symbols[start:stop], counts)
        return counts

    return sum(in_chunks(count, symbols.size), np.zeros(256, np.int64))


def _streams(symbols: np.ndarray, frequencies: np.ndarray) -> list[np.ndarray]:
    """The bytes of the number of words of each stream, then of each stream."""
    table = ((np.cumsum(frequencies) - frequencies) << 16 | frequencies).astype(np.uint32)

    def encode(start: int, stop: int) -> np.ndarray:
        part = symbols[start // ELEMENTS : stop // ELEMENTS]
        words = np.empty(part.size + STATE_WORDS + 1, np.uint16)
        return words[entropy_kernels.encode(part, table, words) :]

    parts = in_chunks(encode, ELEMENTS * symbols.size)
    sizes = np.array([part.size for part in parts], "<u4")
    return [sizes.view(np.uint8), *(part.view(np.uint8) for part in parts)]


def _decode_streams(cursor: _Cursor, symbols: np.ndarray, present: np.ndarray, frequencies: np.ndarray) -> None:
    places = np.arange(TOTAL) - np.repeat(np.cumsum(frequencies) - frequencies, frequencies)
    entries = (present << 24) | (frequencies - 1) << 12
    slots = (np.repeat(entries, frequencies) | places).astype(np.uint32)
    sizes = cursor.take(4 * -(-symbols.size // STREAM)).view("<u4").tolist()
    if min(sizes) < STATE_WORDS:
        raise CodecError(f"{cursor.name}: a stream of {min(sizes)} words; it has at least {STATE_WORDS}")
    streams = [cursor.take(2 * size).view("<u2") for size in sizes]

    def decode(start: int, stop: int) -> bool:
        part = symbols[start // ELEMENTS : stop // ELEMENTS]
        return entropy_kernels.decode(streams[start // CHUNK], slots, part)

    if not all(in_chunks(decode, ELEMENTS * symbols.size)):
        raise CodecError(f"{cursor.name}: its streams are not those of {symbols.size} symbols")


def _unpack(cursor: _Cursor, symbols: np.ndarray, alphabet: int) -> None:
    """Fill `symbols` with the run that begins at the cursor."""
    form = cursor.take(1)[0]
    if form in (PLAIN, CONSTANT):
        symbols[:] = cursor.take(symbols.size if form == PLAIN else 1)
        if symbols.max(initial=0) >= alphabet:
            raise CodecError(f"{cursor.name}: a symbol beyond 0 .. {alphabet - 1}")
    elif form == CODED and symbols.size:
        _decode_streams(cursor, symbols, *_unpack_model(cursor, alphabet))
    else:
        raise CodecError(f"{cursor.name}: {symbols.size} symbols in the unknown form {form}")


class _Cursor:
    """Reads a buffer from the wire from its beginning to its end."""

    def __init__(self, buffer: Any, name: str) -> None:
        self.name = name
        try:
            view = memoryview(buffer)
        except TypeError as error:
            raise CodecError(f"{name}: bytes expected, found {type(buffer).__name__}") from error
        if not view.c_contiguous:
            raise CodecError(f"{name}: contiguous bytes expected")
        self._left = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """A copy of the next `size` bytes, aligned for any type."""
        if size > self._left.size:
            raise CodecError(f"{self.name}: {size} more bytes expected, found {self._left.size}")
        taken, self._left = self._left[:size].copy(), self._left[size:]
        return taken

    def finish(self) -> None:
        """Raise CodecError unless everything has been read."""
        if self._left.size:
            raise CodecError(f"{self.name}: {self._left.size} bytes too many")
