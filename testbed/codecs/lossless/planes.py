"""Levels in bit planes as symbols for the entropy coder, and back.

Sums of ternary messages, k-bit uniform and QSGD messages carry a level of a few bits an element in bit planes
(`testbed.codecs.kernels.planar`). Few of the levels are common: a sum of 4 Gaussian gradients' trits takes 4 bits an
element in planes and holds some 2.2. For each layer, of n levels below `base`:

- base up to 256: a symbol is g levels, as many as a byte holds, base^g <= 256. Of q = ceil(n / g) symbols, symbol j is
  the sum of base^i * level[j + i * q], i = 0 .. g - 1, levels past the layer's end 0. A layer is a run of
  `testbed.codecs.lossless.entropy` with base^g symbols.
- base above 256: a symbol is a level's 8 highest bits. Of what is as wide the lowest bits are nearly random: they
  follow all runs as they are, layer after layer, in planes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.codecs.base import stretches
from testbed.codecs.buffers import BufferPool
from testbed.codecs.kernels import planar
from testbed.codecs.levels import LevelSum
from testbed.codecs.lossless.entropy import EntropyCoded, Runs, Survey, SymbolRuns
from testbed.codecs.qsgd import QSGD
from testbed.codecs.registry import codec
from testbed.codecs.ternary import Ternary
from testbed.codecs.uniform import MAX_BITS, Uniform
from testbed.errors import CodecError
from testbed.layout import Layer

_BYTE = 8


class PlaneRuns:
    """Bit planes of several layers as runs of symbols.

    Parameters
    ----------
    base : levels are below it, 2 to 65,536; a level takes as many planes as its largest one has bits
    layers : those in the planes, one after the other
    """

    def __init__(self, base: int, layers: Sequence[Layer]) -> None:
        self.base = base
        self.bits = (base - 1).bit_length()
        self._low = max(0, self.bits - _BYTE)  # bits of a level that are not coded
        self._base = ((base - 1) >> self._low) + 1  # of those that are
        self._group = _levels_a_symbol(self._base)
        self._dtype = np.uint16 if self._low else np.uint8
        sizes = [layer.size for layer in layers]
        lengths = [-(-size // self._group) for size in sizes]
        self._coder = SymbolRuns(self._base**self._group, [f"layer {layer.name}" for layer in layers], lengths)
        self._places = stretches(lengths)
        self._planes = stretches(planar.plane_bytes(size, self.bits) for size in sizes)
        self._rests = stretches(planar.plane_bytes(size, self._low) for size in sizes)
        self._layers = tuple(layers)
        self._pool = BufferPool()
        self.symbols, self.levels = sum(lengths), sum(sizes)

    def survey(self, buffer: np.ndarray) -> Survey:
        """See `Runs.survey`; CodecError names a layer with a level that is not below `base`."""
        symbols = self._pool.take(self.symbols)
        rest = self._pool.take(self._rests[-1].stop if self._rests else 0)
        for layer, planes, place, low in zip(self._layers, self._planes, self._places, self._rests, strict=True):
            levels = self._levels(layer.size)
            planar.unpack(buffer[planes], levels[: layer.size], self.bits)
            if self._low:
                planar.pack(levels[: layer.size], rest[low], self._low)
                levels >>= self._low
            if levels.max(initial=0) >= self._base:
                raise CodecError(f"layer {layer.name}: a level that is not below {self.base}")
            self._join(levels, symbols[place])
        runs, nbytes, _ = self._coder.survey(symbols)
        return Survey(runs, nbytes + rest.size, rest)

    def code(self, survey: Survey) -> np.ndarray:
        """See `Runs.code`."""
        return self._coder.code(survey)

    def unpack(self, buffer: Any) -> np.ndarray:
        """See `Runs.unpack`."""
        symbols, cursor = self._coder.read(buffer)
        cursor.name = "the lowest bits"
        rest = cursor.take(self._rests[-1].stop if self._rests else 0)
        cursor.finish()
        packed = self._pool.take(self._planes[-1].stop if self._planes else 0)
        for layer, planes, place, low in zip(self._layers, self._planes, self._places, self._rests, strict=True):
            levels = self._levels(layer.size)
            self._part(symbols[place], levels)
            if self._low:
                lowest = self._pool.take(layer.size, self._dtype)
                planar.unpack(rest[low], lowest, self._low)
                levels <<= self._low
                levels[: layer.size] |= lowest
            planar.pack(levels[: layer.size], packed[planes], self.bits)
        return packed

    def _levels(self, size: int) -> np.ndarray:
        """Room for the levels of a layer of so many, filled up with zeros to whole symbols."""
        levels = self._pool.take(-(-size // self._group) * self._group, self._dtype)
        levels[size:] = 0
        return levels

    def _join(self, levels: np.ndarray, symbols: np.ndarray) -> None:
        """Make symbols [q] of levels [g * q]."""
        digits = levels.reshape(self._group, -1)
        symbols[:] = digits[-1]
        for digit in digits[-2::-1]:
            symbols *= np.uint8(self._base)
            symbols += digit

    def _part(self, symbols: np.ndarray, levels: np.ndarray) -> None:
        """The inverse of `_join`; changes the symbols."""
        digits = levels.reshape(self._group, -1)
        for digit in digits[:-1]:
            quotient = self._pool.take(symbols.size)
            np.floor_divide(symbols, np.uint8(self._base), out=quotient)
            np.multiply(quotient, np.uint8(self._base), out=digit)
            np.subtract(symbols, digit, out=digit)
            symbols[:] = quotient
        digits[-1] = symbols


def coded_levels(levels: LevelSum, messages: Ternary) -> EntropyCoded:
    """Sums of the `messages` of a ternary codec, entropy coded; there is no `encode`, a sum is no vector."""
    return EntropyCoded(levels, PlaneRuns(2 * levels.workers + 1, messages.ternary))


def coded_uniform(codec: Uniform) -> EntropyCoded:
    """Messages of the codec's own number of bits, entropy coded."""
    layers = codec.selection.coded
    runs: Runs
    if codec.bits == MAX_BITS:
        runs = SymbolRuns(1 << MAX_BITS, [f"layer {layer.name}" for layer in layers], [layer.size for layer in layers])
    else:
        runs = PlaneRuns(1 << codec.bits, layers)
    return EntropyCoded(codec, runs)


def coded_qsgd(codec: QSGD) -> EntropyCoded:
    """Messages of a codec with coding "fixed", entropy coded."""
    return EntropyCoded(codec, PlaneRuns(2 * codec.levels + 1, codec.selection.coded))


def _levels_a_symbol(base: int) -> int:
    count = 1
    while base ** (count + 1) <= 1 << _BYTE:
        count += 1
    return count


codec("uniform 4-bit, entropy-coded")(lambda layout: coded_uniform(Uniform(layout, bits=4)))
