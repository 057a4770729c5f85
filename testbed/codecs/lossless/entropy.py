"""Entropy coding of small alphabets: a static order-0 model a run of symbols, coded with rANS.

A run, e.g. one layer's packed trits, is coded on its own, since layers differ in their statistics:

- byte 0 says in which form it is: 0 plain, 1 constant, 2 coded; the encoder takes the shortest;
- plain: the symbols as they are; constant: one byte, the symbol that all of them are;
- coded: the model, then the streams.
  The model is a bit map of the symbols that occur, ceil(alphabet / 8) bytes, lowest bit first; their frequencies'
  low 7 bits, one byte each, the top bit set where more follow; the rest of those frequencies, one byte each.
  Frequencies sum to 4096. The streams (`testbed.codecs.kernels.entropy`), each of `STREAM` symbols but for the last,
  are preceded by the number of 16-bit words of each, as little-endian uint32.

How many symbols there are is not in the message: both sides know it from the model's layout.

Five trits a byte are 243 symbols, so a byte model sees most of what five trits hold: at 2.5 sigma, 1.221 bits an
element of a Gaussian gradient, where the trits' own entropy is 1.219 and plain packing takes 1.6. How levels in bit
planes become symbols is in `testbed.codecs.lossless.planes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from testbed.codecs.base import Buffers, Key, WireBuffers, stretches
from testbed.codecs.buffers import Allocate, BufferPool
from testbed.codecs.kernels import entropy as kernels
from testbed.codecs.kernels.compiled import warm_up
from testbed.codecs.kernels.entropy import CODED, CONSTANT, MODEL, NO_SUM, PLAIN, SHORT, STATE_WORDS, TOTAL
from testbed.codecs.kernels.ternary import MAX_TRIT_BYTE
from testbed.codecs.kernels.threads import CHUNK, in_chunks
from testbed.codecs.registry import codec
from testbed.codecs.ternary import Ternary
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError
from testbed.gpu.moves import beside, near
from testbed.layout import Layout

ELEMENTS = 5  # a symbol is as much work as so many elements of other kernels, and a packed trit holds as many
STREAM = CHUNK // ELEMENTS  # symbols of a stream; streams are coded on several threads


def worth_coding(plain_bytes: int, coded_bytes: int, seconds: float, rate_mbit: float) -> bool:
    """Whether coding pays: `seconds` of coding and decoding against what a link of `rate_mbit` needs for the rest."""
    return seconds < (plain_bytes - coded_bytes) * 8e-6 / rate_mbit


class Run(NamedTuple):
    """A run of symbols and the form that it is shortest in.

    Parameters
    ----------
    symbols : uint8 [n]
    form : PLAIN, CONSTANT or CODED
    nbytes : that it takes, within a few where it is coded
    frequencies : int64 [256] that sum to `TOTAL`, and
    model : their bytes, where it is coded
    """

    symbols: np.ndarray
    form: int
    nbytes: int
    frequencies: np.ndarray | None = None
    model: np.ndarray | None = None


class Survey(NamedTuple):
    """What is known of a buffer once its symbols are counted: its runs, and the bytes that it takes coded.

    `rest` is what follows the runs as it is.
    """

    runs: list[Run]
    nbytes: int
    rest: np.ndarray


def survey_symbols(symbols: np.ndarray, alphabet: int, name: str = "symbols") -> Run:
    """Count a run's symbols (uint8, each below `alphabet`, 1 to 256); CodecError with `name` when one is not."""
    counts = _counts(symbols)
    if counts[alphabet:].any():
        raise CodecError(f"{name}: a symbol beyond 0 .. {alphabet - 1}")
    present = np.flatnonzero(counts)
    if present.size == 1:
        return Run(symbols, CONSTANT, 2)
    if present.size > 1:
        frequencies = np.zeros(256, np.int64)
        kernels.quantize_counts(counts, frequencies)
        model = _pack_model(frequencies, alphabet)
        nbytes = model.size + int((counts[present] * np.log2(TOTAL / frequencies[present])).sum() / 8)
        if nbytes < symbols.size:
            streams = -(-symbols.size // STREAM)
            return Run(symbols, CODED, 1 + nbytes + streams * (4 + 2 * STATE_WORDS), frequencies, model)
    return Run(symbols, PLAIN, 1 + symbols.size)


def pack_symbols(
    symbols: np.ndarray, alphabet: int, name: str = "symbols", allocate: Allocate = np.empty
) -> np.ndarray:
    """Code a run of symbols in the shortest of the three forms.

    Parameters
    ----------
    symbols : uint8 [n], each below `alphabet`
    alphabet : 1 to 256
    name : whose they are, for an error
    allocate : memory for the run and what is needed on the way

    Raises
    ------
    CodecError : a symbol is not of the alphabet
    """
    room = allocate(1 + symbols.size, np.uint8)
    return room[: _write(survey_symbols(symbols, alphabet, name), room, allocate)]


def unpack_symbols(
    buffer: Any, count: int, alphabet: int, name: str = "symbols", allocate: Allocate = np.empty
) -> np.ndarray:
    """The inverse of `pack_symbols`: uint8 [count]; CodecError when the buffer is not `count` symbols, coded."""
    cursor = _Cursor(buffer, name)
    symbols = allocate(count, np.uint8)
    _read(cursor, symbols, alphabet, allocate)
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
        warm_up()
        self.alphabet = alphabet
        self.symbols, self.levels = sum(lengths), 0
        self._runs = tuple(zip(names, stretches(lengths), strict=True))
        self._lengths = np.array(lengths, np.int64)
        self._pool = BufferPool()

    def survey(self, symbols: np.ndarray) -> Survey:
        """Count symbols [sum of the lengths] run by run; CodecError when one is not of the alphabet."""
        runs = [survey_symbols(symbols[run], self.alphabet, name) for name, run in self._runs]
        return Survey(runs, sum(run.nbytes for run in runs), np.empty(0, np.uint8))

    def code(self, survey: Survey) -> np.ndarray:
        """The buffer of runs that have been surveyed."""
        room = self._pool.take(sum(1 + run.symbols.size for run in survey.runs) + survey.rest.size)
        end = 0
        for run in survey.runs:
            end += _write(run, room[end:], self._pool.take)
        room[end : end + survey.rest.size] = survey.rest
        return room[: end + survey.rest.size]

    def pack(self, symbols: np.ndarray) -> np.ndarray:
        """Code symbols [sum of the lengths] run by run; CodecError when one is not of the alphabet."""
        return self.code(self.survey(symbols))

    def unpack(self, buffer: Any) -> np.ndarray:
        """The inverse of `pack`: uint8 [sum of the lengths]; CodecError names the run that is malformed."""
        symbols, cursor = self.read(buffer)
        cursor.finish()
        return symbols

    def read(self, buffer: Any) -> tuple[np.ndarray, _Cursor]:
        """The symbols at the beginning of a buffer, and what reads on behind them; errors as of `unpack`."""
        cursor = _Cursor(buffer, "symbols")
        symbols = self._pool.take(self.symbols)
        here = 0
        while here < len(self._runs):
            rest = symbols[self._runs[here][1].start :]
            runs, size = kernels.read_runs(cursor.left, self._lengths[here:], self.alphabet, STREAM, rest)
            cursor.take(size)
            here += runs
            if here < len(self._runs):  # one of several streams, or what is wrong with it is to be said
                cursor.name, run = self._runs[here]
                _read(cursor, symbols[run], self.alphabet, self._pool.take)
                here += 1
        return symbols, cursor


class Runs(Protocol):
    """How the last buffer of a codec's messages becomes runs of symbols and back.

    Attributes
    ----------
    symbols : of a message
    levels : in bit planes, which they are put together from; 0 where the buffer holds the symbols themselves
    """

    symbols: int
    levels: int

    def survey(self, buffer: np.ndarray) -> Survey:
        """Count a plain buffer's symbols."""

    def code(self, survey: Survey) -> np.ndarray:
        """The coded buffer."""

    def unpack(self, buffer: Any) -> np.ndarray:
        """The plain buffer of a coded one; CodecError when it is malformed."""


class EntropyCoded:
    """A codec with the last buffer of its messages, which holds symbols, entropy coded.

    Of a message on a device that buffer comes down to be coded, which is waited for, and goes up when it is decoded.

    Parameters
    ----------
    codec : makes and reads the plain messages
    runs : how the last buffer divides; None for a ternary codec: a run of bytes of five trits a layer
    """

    def __init__(self, codec: Any, runs: Runs | None = None) -> None:
        self.codec = codec
        self.layout: Layout = codec.layout
        self.runs = runs or trit_runs(codec)

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """See `Codec.encode`."""
        return self.pack(self.codec.encode(vector, key))

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Codec.decode`."""
        return self.codec.decode(self.unpack(buffers), out)

    def survey(self, buffers: Buffers) -> Survey:
        """Count the symbols of a message of the codec: what `pack` makes of it, and how many bytes."""
        return self.runs.survey(near(buffers[-1]))

    def pack(self, buffers: Buffers, survey: Survey | None = None) -> Buffers:
        """A message of the codec with its symbols coded; `survey` where it has been made already."""
        return [*buffers[:-1], self.runs.code(survey or self.survey(buffers))]

    def unpack(self, buffers: WireBuffers) -> list[Any]:
        """The codec's own message; CodecError when the symbols are malformed. The other buffers are not looked at."""
        if not buffers:
            raise CodecError("a message without buffers")
        return [*buffers[:-1], beside(self.runs.unpack(buffers[-1]), buffers[:-1])]


def trit_runs(codec: TritFormat) -> SymbolRuns:
    """The runs of a ternary codec's messages: bytes of five trits, layer by layer."""
    names = [f"layer {layer.name}" for layer in codec.ternary]
    return SymbolRuns(MAX_TRIT_BYTE + 1, names, [run.stop - run.start for run in codec.runs])


codec("ternary, entropy-coded")(lambda layout: EntropyCoded(Ternary(layout)))


# --- the model -----------------------------------------------------------------------------------------------------


def _counts(symbols: np.ndarray) -> np.ndarray:
    """How often each symbol occurs, int64 [256]."""

    def count(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(256, np.int64)
        kernels.count_symbols(symbols[start:stop], counts)
        return counts

    return sum(in_chunks(count, symbols.size), np.zeros(256, np.int64))


def _pack_model(frequencies: np.ndarray, alphabet: int) -> np.ndarray:
    model = np.empty(MODEL, np.uint8)
    return model[: kernels.write_model(frequencies, alphabet, model)]


def _unpack_model(cursor: _Cursor, alphabet: int) -> np.ndarray:
    """Its frequencies, int64 [256]."""
    frequencies = np.empty(256, np.int64)
    size = kernels.read_model(cursor.left, alphabet, frequencies)
    if size == SHORT:
        raise CodecError(f"{cursor.name}: a model that goes on beyond the end")
    if size == NO_SUM:
        raise CodecError(f"{cursor.name}: the frequencies of a model are at least 1 and sum to {TOTAL}")
    if size < 0:
        raise CodecError(f"{cursor.name}: a model of fewer than two symbols, or of one beyond 0 .. {alphabet - 1}")
    cursor.take(size)
    return frequencies


# --- runs ------------------------------------------------------------------------------------------------------------


def _write(run: Run, room: np.ndarray, allocate: Allocate) -> int:
    """Write a run to the beginning of `room`, uint8 of at least one more than its symbols; how many bytes it takes."""
    form, parts = run.form, [run.symbols]
    if form == CONSTANT:
        parts = [run.symbols[:1]]
    if form == CODED:
        assert run.frequencies is not None and run.model is not None
        coded = [run.model, *_streams(run.symbols, run.frequencies, allocate)]
        if sum(part.size for part in coded) < run.symbols.size:
            parts = coded
        else:  # it was close, and words are whole
            form = PLAIN
    room[0], end = form, 1
    for part in parts:
        room[end : end + part.size] = part
        end += part.size
    return end


def _read(cursor: _Cursor, symbols: np.ndarray, alphabet: int, allocate: Allocate) -> None:
    """Fill `symbols` with the run that begins at the cursor."""
    form = cursor.take(1)[0]
    if form in (PLAIN, CONSTANT):
        symbols[:] = cursor.take(symbols.size if form == PLAIN else 1)
        if symbols.max(initial=0) >= alphabet:
            raise CodecError(f"{cursor.name}: a symbol beyond 0 .. {alphabet - 1}")
    elif form == CODED and symbols.size:
        _decode_streams(cursor, symbols, _unpack_model(cursor, alphabet), allocate)
    else:
        raise CodecError(f"{cursor.name}: {symbols.size} symbols in the unknown form {form}")


def _streams(symbols: np.ndarray, frequencies: np.ndarray, allocate: Allocate) -> list[np.ndarray]:
    """The bytes of the number of words of each stream, then of each stream."""
    table = np.empty(256, np.uint32)
    kernels.fill_table(frequencies, table)
    most = STREAM + STATE_WORDS + 1  # words of a stream, which come to lie at the end of its part
    words = allocate(symbols.size + (most - STREAM) * -(-symbols.size // STREAM), np.uint16)

    def encode(start: int, stop: int) -> np.ndarray:
        part, first = symbols[start // ELEMENTS : stop // ELEMENTS], start // CHUNK * most
        here = words[first : first + part.size + most - STREAM]
        return here[kernels.encode(part, table, here) :]

    parts = in_chunks(encode, ELEMENTS * symbols.size)
    sizes = np.array([part.size for part in parts], "<u4")
    return [sizes.view(np.uint8), *(part.view(np.uint8) for part in parts)]


def _decode_streams(cursor: _Cursor, symbols: np.ndarray, frequencies: np.ndarray, allocate: Allocate) -> None:
    slots = np.empty(TOTAL, np.uint32)
    kernels.fill_slots(frequencies, slots)
    sizes = cursor.take(4 * -(-symbols.size // STREAM)).view("<u4").tolist()
    if min(sizes) < STATE_WORDS:
        raise CodecError(f"{cursor.name}: a stream of {min(sizes)} words; it has at least {STATE_WORDS}")
    packed = cursor.take(2 * sum(sizes))
    words = allocate(sum(sizes), np.uint16)  # aligned, which the packed ones need not be
    words.view(np.uint8)[:] = packed
    streams = [words[place] for place in stretches(sizes)]

    def decode(start: int, stop: int) -> bool:
        part = symbols[start // ELEMENTS : stop // ELEMENTS]
        return kernels.decode(streams[start // CHUNK], slots, part)

    if not all(in_chunks(decode, ELEMENTS * symbols.size)):
        raise CodecError(f"{cursor.name}: its streams are not those of {symbols.size} symbols")


class _Cursor:
    """Reads a buffer from the wire from its beginning to its end; `left` is what has not been read."""

    def __init__(self, buffer: Any, name: str) -> None:
        self.name = name
        try:
            view = memoryview(buffer)
        except TypeError as error:
            raise CodecError(f"{name}: bytes expected, found {type(buffer).__name__}") from error
        if not view.c_contiguous:
            raise CodecError(f"{name}: contiguous bytes expected")
        self.left = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """The next `size` bytes."""
        if size > self.left.size:
            raise CodecError(f"{self.name}: {size} more bytes expected, found {self.left.size}")
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def finish(self) -> None:
        """Raise CodecError unless everything has been read."""
        if self.left.size:
            raise CodecError(f"{self.name}: {self.left.size} bytes too many")
