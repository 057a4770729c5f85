"""The hot loops of the entropy coder: rANS on four interleaved states (Duda 2013; Giesen 2014).

Theory of operation:

1. A state x is a number in [2^16, 2^32). Coding a symbol whose frequency is f of 2^12, and which begins at c among
   the cumulated frequencies, makes x (x // f) * 2^12 + c + x % f: it grows by log2(2^12 / f) bits. Before it would
   leave its range, its low 16 bits go out as a word; 12 bits a symbol at most, so one word is always enough.
2. Decoding goes the other way, last symbol first. So the encoder takes the symbols from the last to the first and
   writes its words from the end of the buffer to the front: the decoder does both forwards.
3. Symbol i belongs to state i % 4. Four states do not wait for each other; their words interleave in an order that
   the decoder finds by itself, since it needs a word exactly when the encoder wrote one.
4. Whether a word is written or read decides no branch, which no processor could predict: it is always written and
   the position moved or not.
5. States start at 2^16 and are the first 8 words of a stream. A decoder that does not come back to 2^16 in all
   four, or not to the end of the words, was given another stream than the encoder made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from testbed.codecs.kernels.compiled import I64, U8, U16, U32, kernel, read_only, writable
from testbed.codecs.kernels.lanes import add, and_, low_byte, mul, or_, shl, shr

PROBABILITY_BITS = 12
TOTAL = 1 << PROBABILITY_BITS  # sum of a model's frequencies
PLAIN, CONSTANT, CODED = 0, 1, 2  # forms of a run
STATES = 4
STATE_WORDS = 2 * STATES  # 16-bit words that carry the states
MODEL = 32 + 2 * 256  # bytes of a model, at most
MORE = 128  # a frequency from here on has its rest in a byte of its own
_LOW = np.uint32(1 << 16)  # smallest state
_WORD, _BITS, _20, _24 = (np.uint32(n) for n in (16, PROBABILITY_BITS, 20, 24))
_MASK, _HALF = np.uint32(TOTAL - 1), np.uint32(0xFFFF)


@kernel((read_only(U8), writable(I64)))
def count_symbols(symbols: np.ndarray, counts: np.ndarray) -> None:
    """Add to counts [256] how often each symbol occurs."""
    parts = np.zeros((4, 256), np.uint32)  # equal symbols in a row do not wait for each other's count
    whole = symbols.size // 4 * 4
    for i in range(0, whole, 4):
        for k in range(4):
            parts[k, symbols[i + k]] += 1
    for i in range(whole, symbols.size):
        parts[0, symbols[i]] += 1
    for k in range(4):
        for symbol in range(256):
            counts[symbol] += parts[k, symbol]


@kernel((read_only(I64), writable(I64)))
def quantize_counts(counts: np.ndarray, frequencies: np.ndarray) -> None:
    """Set frequencies [256] that sum to `TOTAL`, at least 1 for each of the (two or more) symbols that occur.

    Counts are scaled and rounded; what the sum is off by is then taken or given one at a time where it costs or
    gains the fewest bits.
    """
    size, total = 0, 0
    for symbol in range(256):
        size += counts[symbol]
    for symbol in range(256):
        count = counts[symbol]
        frequencies[symbol] = max(1, (count * TOTAL + size // 2) // size) if count else 0
        total += frequencies[symbol]
    step = 1 if total < TOTAL else -1
    while total != TOTAL:
        best, least = -1, np.inf
        for symbol in range(256):
            f = frequencies[symbol]
            if f == 0 or f + step == 0:
                continue
            change = -step * counts[symbol] * np.log((f + step) / f)  # in nats, over all its occurrences
            if change < least:
                best, least = symbol, change
        frequencies[best] += step
        total += step


# --- the model --------------------------------------------------------------------------------------------------

SHORT, NO_MODEL, NO_SUM = -1, -2, -3  # what `read_model` returns where there is none


@kernel((read_only(I64), I64, writable(U8)))
def write_model(frequencies: np.ndarray, alphabet: int, model: np.ndarray) -> int:
    """Write a model (`testbed.codecs.lossless.entropy`) to the beginning of model [MODEL]; how many bytes it takes."""
    bits = (alphabet + 7) // 8
    model[:bits] = 0
    present = 0
    for symbol in range(alphabet):
        present += frequencies[symbol] > 0
    place, more = bits, bits + present
    for symbol in range(alphabet):
        frequency = frequencies[symbol]
        if frequency > 0:
            model[symbol >> 3] |= np.uint8(1 << (symbol & 7))
            long = frequency >= MORE
            model[place] = np.uint8(frequency % MORE + (MORE if long else 0))
            place += 1
            if long:
                model[more] = np.uint8(frequency // MORE)
                more += 1
    return more


@kernel((read_only(U8), I64, writable(I64)))
def read_model(data: np.ndarray, alphabet: int, frequencies: np.ndarray) -> int:
    """Set frequencies [256] to those of the model that data begins with; the bytes that it takes, or what is wrong."""
    bits = (alphabet + 7) // 8
    if data.size < bits:
        return SHORT
    present = 0
    for symbol in range(8 * bits):
        here = data[symbol >> 3] >> (symbol & 7) & 1
        if here and symbol >= alphabet:
            return NO_MODEL
        present += here
    if present < 2:
        return NO_MODEL
    place, more, total = bits, bits + present, np.int64(0)
    if data.size < more:
        return SHORT
    for symbol in range(256):
        frequencies[symbol] = 0
        if symbol < alphabet and data[symbol >> 3] >> (symbol & 7) & 1:
            frequency = np.int64(data[place])
            place += 1
            if frequency >= MORE:
                if more == data.size:
                    return SHORT
                frequency += MORE * (np.int64(data[more]) - 1)
                more += 1
            if frequency < 1:
                return NO_SUM
            frequencies[symbol] = frequency
            total += frequency
    return more if total == TOTAL else NO_SUM


@kernel((read_only(I64), writable(U32)))
def fill_table(frequencies: np.ndarray, table: np.ndarray) -> None:
    """Write what `encode` goes by: table [256]."""
    start = 0
    for symbol in range(256):
        table[symbol] = np.uint32(start << 16 | frequencies[symbol])
        start += frequencies[symbol]


@kernel((read_only(I64), writable(U32)))
def fill_slots(frequencies: np.ndarray, slots: np.ndarray) -> None:
    """Write what `decode` goes by: slots [TOTAL]; the frequencies sum to that."""
    start = 0
    for symbol in range(256):
        entry = symbol << 24 | (frequencies[symbol] - 1) << 12
        for place in range(frequencies[symbol]):
            slots[start + place] = np.uint32(entry | place)
        start += frequencies[symbol]


# --- encoding ---------------------------------------------------------------------------------------------------


@njit(inline="always")
def _put(x: Any, entry: Any, words: Any, position: Any) -> Any:
    """(state, position) after coding a symbol whose table entry is start << 16 | frequency."""
    frequency = and_(entry, _HALF)
    full = np.uint32(x >= shl(frequency, _20))
    words[position - 1] = np.uint16(and_(x, _HALF))
    position -= np.int64(full)
    x = shr(x, shl(full, np.uint32(4)))
    quotient = np.uint32(x // frequency)
    remainder = np.uint32(x - quotient * frequency)
    return add(add(shl(quotient, _BITS), shr(entry, _WORD)), remainder), position


@kernel((read_only(U8), read_only(U32), writable(U16)))
def encode(symbols: np.ndarray, table: np.ndarray, words: np.ndarray) -> int:
    """Code symbols into the end of words [symbols.size + STATE_WORDS + 1]; where they begin there.

    Parameters
    ----------
    table : uint32 [256], start << 16 | frequency of each symbol
    """
    position = words.size
    a = b = c = d = _LOW
    whole = symbols.size // STATES * STATES
    rest = symbols.size - whole
    if rest > 2:
        c, position = _put(c, table[symbols[whole + 2]], words, position)
    if rest > 1:
        b, position = _put(b, table[symbols[whole + 1]], words, position)
    if rest > 0:
        a, position = _put(a, table[symbols[whole]], words, position)
    for i in range(whole - STATES, -1, -STATES):
        d, position = _put(d, table[symbols[i + 3]], words, position)
        c, position = _put(c, table[symbols[i + 2]], words, position)
        b, position = _put(b, table[symbols[i + 1]], words, position)
        a, position = _put(a, table[symbols[i]], words, position)
    for x in (d, c, b, a):
        position -= 2
        words[position] = np.uint16(and_(x, _HALF))
        words[position + 1] = np.uint16(shr(x, _WORD))
    return position


# --- decoding ---------------------------------------------------------------------------------------------------


@njit(inline="always")
def _get(x: Any, slots: Any) -> Any:
    """(state, symbol) before the word, by the slot's symbol << 24 | (frequency - 1) << 12 | place in the symbol."""
    slot = slots[and_(x, _MASK)]
    frequency = add(and_(shr(slot, _BITS), _MASK), np.uint32(1))
    return add(mul(frequency, shr(x, _BITS)), and_(slot, _MASK)), low_byte(shr(slot, _24))


@njit(inline="always")
def _refill(x: Any, words: Any, position: Any) -> Any:
    """(state, position) after reading a word if the state needs one; words[position] exists."""
    short = x < _LOW
    filled = or_(shl(x, _WORD), np.uint32(words[position]))
    return np.uint32(filled if short else x), position + np.int64(short)


@njit(inline="always")
def _state(words: Any, k: int) -> Any:
    return or_(np.uint32(words[2 * k]), shl(np.uint32(words[2 * k + 1]), _WORD))


@kernel((read_only(U16), read_only(U32), writable(U8)))
def decode(words: np.ndarray, slots: np.ndarray, symbols: np.ndarray) -> bool:
    """Decode exactly symbols.size symbols from all of the words; False when they are no stream of so many.

    Parameters
    ----------
    words : at least `STATE_WORDS` of them
    slots : uint32 [TOTAL], see `_get`
    """
    a, b, c, d = _state(words, 0), _state(words, 1), _state(words, 2), _state(words, 3)
    position, i = STATE_WORDS, 0
    while i + STATES <= symbols.size and position + STATES <= words.size:
        a, symbols[i] = _get(a, slots)
        b, symbols[i + 1] = _get(b, slots)
        c, symbols[i + 2] = _get(c, slots)
        d, symbols[i + 3] = _get(d, slots)
        a, position = _refill(a, words, position)
        b, position = _refill(b, words, position)
        c, position = _refill(c, words, position)
        d, position = _refill(d, words, position)
        i += STATES
    while i < symbols.size:  # near the end of the words each is looked for
        a, symbols[i] = _get(a, slots)
        if a < _LOW:
            if position == words.size:
                return False
            a, position = _refill(a, words, position)
        a, b, c, d = b, c, d, a
        i += 1
    return position == words.size and a == b == c == d == _LOW


# --- runs -------------------------------------------------------------------------------------------------------


@kernel((read_only(U8), read_only(I64), I64, I64, writable(U8)))
def read_runs(data: np.ndarray, lengths: np.ndarray, alphabet: int, longest: int, symbols: np.ndarray) -> Any:
    """Read runs of such lengths from the beginning of data, up to the first that is malformed or has several streams.

    Parameters
    ----------
    longest : symbols of a run of one stream
    symbols : of all runs

    Returns
    -------
    How many runs were read, and how many bytes.
    """
    frequencies, slots = np.empty(256, np.int64), np.empty(TOTAL, np.uint32)
    taken, start = np.int64(0), np.int64(0)
    for run in range(lengths.size):
        here = symbols[start : start + lengths[run]]
        used = np.int64(-1) if lengths[run] > longest else _read_run(data[taken:], alphabet, frequencies, slots, here)
        if used < 0:
            return run, taken
        taken += used
        start += lengths[run]
    return lengths.size, taken


@njit
def _read_run(data: Any, alphabet: Any, frequencies: Any, slots: Any, symbols: Any) -> Any:
    """The bytes of the run that data begins with; -1: it is malformed."""
    if data.size < 1:
        return np.int64(-1)
    if data[0] == CODED and symbols.size > 0:
        model = read_model(data[1:], alphabet, frequencies)
        if model < 0 or data.size < model + 5:
            return np.int64(-1)
        count, place = np.int64(0), model + 5
        for k in range(4):
            count |= np.int64(data[1 + model + k]) << 8 * k
        if count < STATE_WORDS or data.size < place + 2 * count:
            return np.int64(-1)
        fill_slots(frequencies, slots)
        words = np.empty(count, np.uint16)
        for k in range(count):
            words[k] = np.uint16(data[place + 2 * k]) | np.uint16(data[place + 2 * k + 1]) << 8
        return place + 2 * count if decode(words, slots, symbols) else np.int64(-1)
    size = symbols.size if data[0] == PLAIN else 1
    if data[0] > CONSTANT or data.size < 1 + size:
        return np.int64(-1)
    for i in range(symbols.size):
        symbols[i] = data[1 + i] if data[0] == PLAIN else data[1]
        if symbols[i] >= alphabet:
            return np.int64(-1)
    return np.int64(1 + size)
