"""k bits an element: uniform levels from a layer's smallest value to its largest (MQGrad's fixed-k).

MQGrad (section 3.2) quantizes as TensorFlow does (its page "How to Quantize Neural Networks"): with k bits, level l
of a layer with values in [low, high] stands for low + l * step, step = (high - low) / (2^k - 1), and a value becomes
the level nearest to it, so that the error of no element is above step / 2. Rounding at random instead is unbiased,
with twice the mean square error, step^2 / 6 against step^2 / 12 of values spread evenly. No level stands for zero,
unless a layer's range happens to hold one there: few bits want error feedback.

How many bits is the message's own: one codec writes and reads messages of 1 to 8. It has four buffers; numbers are
little-endian:

1. bits: one byte, k;
2. ranges: two float32 a quantized layer, low and high;
3. floats: the float32 values of the layers that are not quantized, one after the other;
4. levels: for each quantized layer a run. 8 bits are a byte an element. Fewer are k * ceil(size / 8) bytes in bit
   planes: a block of 8 segments of 1,024 elements is k planes of 1,024 bytes, lowest bit first; bit s of byte j of a
   plane belongs to element j of segment s. The rest of r elements is a last block with segments of ceil(r / 8);
   bits past the layer's end are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    Elements,
    Key,
    VectorCodec,
    WireBuffers,
    beside,
    elements,
    expect,
    require_finite,
    room,
    stretches,
    wire_array,
)
from testbed.codecs.kernels.planar import plane_bytes
from testbed.codecs.registry import codec
from testbed.codecs.selection import Selection
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

MAX_BITS = 8
Rounding = Literal["nearest", "random"]


class Quantized(NamedTuple):
    """A vector's quantized layers, one after the other, before packing.

    Parameters
    ----------
    bits : k
    ranges : float32 [layers, 2], low and high
    levels : uint8 [elements], 0 .. 2^k - 1
    """

    bits: int
    ranges: np.ndarray
    levels: np.ndarray


class Uniform(VectorCodec):
    """Uniform min-max quantization.

    Parameters
    ----------
    layout : the model
    bits : of a message, 1 to 8, where `encode` is not told otherwise
    rounding : to the "nearest" level (halves up), or up or down at "random" without bias
    chosen : says of a layer whether it is quantized; the others stay in float32
    """

    costs_as = "uniform"

    def __init__(
        self,
        layout: Layout,
        bits: int = 8,
        rounding: Rounding = "nearest",
        chosen: Callable[[Layer], bool] | None = None,
    ) -> None:
        super().__init__(layout)
        self.bits = _checked(bits)
        self.rounding = rounding
        self.selection = Selection(layout, chosen)
        self._places = stretches(layer.size for layer in self.selection.coded)

    def nbytes(self, bits: int | None = None) -> int:
        """Exact bytes of a message of so many bits an element."""
        return 1 + 8 * len(self.selection.coded) + self.selection.nbytes + sum(self._lengths(self.bits_of(bits)))

    def sizes(self) -> Sequence[int]:
        return [1, 8 * len(self.selection.coded), self.selection.nbytes, sum(self._lengths(self.bits))]

    def bits_of(self, bits: int | None) -> int:
        """How many bits a message has that is asked for these; CodecError where there is none."""
        return self.bits if bits is None else _checked(bits)

    def encode(self, vector: torch.Tensor, key: Key | None = None, bits: int | None = None) -> Buffers:
        """Quantize and pack.

        Parameters
        ----------
        vector : float32 [layout.size]
        key : names the random numbers; rounding to the nearest level needs none
        bits : of this message, 1 to 8

        Raises
        ------
        CodecError : NaN or infinity in a layer
        """
        return self._encode(elements(vector, self.layout), None, key, self.bits_of(bits))

    def encode_with_feedback(
        self, vector: torch.Tensor, residual: torch.Tensor, key: Key | None = None, bits: int | None = None
    ) -> Buffers:
        """Encode vector + residual; `residual` [layout.size] becomes what the message leaves of it.

        Raises
        ------
        CodecError : NaN or infinity in a layer of the sum; the residual is as it was
        """
        x, rest = elements(vector, self.layout), beside(residual, vector, self.layout)
        return self._encode(x, rest, key, self.bits_of(bits))

    def quantize(self, vector: torch.Tensor, key: Key | None = None, bits: int | None = None) -> Quantized:
        """The levels that `encode` packs, e.g. for an entropy coder; parameters and errors are those of `encode`."""
        x, k = elements(vector, self.layout), self.bits_of(bits)
        on = backend.of(x)
        ranges = self._ranges(x, None)
        levels = self._pool.take(sum(layer.size for layer in self.selection.coded))
        rules = self._rules(ranges, k, key)
        for layer, place, rule in zip(self.selection.coded, self._places, rules, strict=True):
            on.uniform.quantize(x[layer.slice], levels[place], rule.low, rule.step, rule.random, rule.key)
        return Quantized(k, ranges, levels)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write low + level * step, the float layers as they came; see `Codec.decode`."""
        expect(buffers, ["bits", "ranges", "floats", "levels"])
        bits = _checked(int(wire_array(buffers[0], np.uint8, 1, "bits")[0]))
        ranges = wire_array(buffers[1], np.float32, 2 * len(self.selection.coded), "ranges").reshape(-1, 2)
        floats = self.selection.view(buffers[2])
        planes = wire_array(buffers[3], np.uint8, sum(self._lengths(bits)), "levels")
        for layer, (low, high) in zip(self.selection.coded, ranges, strict=True):
            if not -np.inf < low <= high < np.inf:
                raise CodecError(f"layer {layer.name}: {low} to {high} is no range of finite values")
        vector, y = room(out, self.layout)
        on = backend.of(y)
        self.selection.scatter(floats, y)
        for layer, range_, run in zip(self.selection.coded, ranges, stretches(self._lengths(bits)), strict=True):
            on.uniform.unpack(planes[run], y[layer.slice], *_grid(range_, bits), bits)
        return vector

    def _encode(self, x: Elements, rest: Elements | None, key: Key | None, bits: int) -> Buffers:
        on, ranges = backend.of(x), self._ranges(x, rest)
        rules = self._rules(ranges, bits, key)
        floats = self.selection.gather(x)
        if rest is not None:
            with np.errstate(over="ignore"):
                floats += self.selection.gather(rest)
            require_finite(floats, self.selection.floats)
            for layer in self.selection.floats:
                rest[layer.slice] = 0
        planes = self._pool.take(sum(self._lengths(bits)))
        for layer, rule, run in zip(self.selection.coded, rules, stretches(self._lengths(bits)), strict=True):
            on.uniform.pack(x[layer.slice], _part(rest, layer), planes[run], *rule)
        return [np.array([bits], np.uint8), ranges.reshape(-1), floats, planes]

    def _lengths(self, bits: int) -> list[int]:
        """Bytes of the quantized layers' runs of levels."""
        sizes = [layer.size for layer in self.selection.coded]
        return sizes if bits == MAX_BITS else [plane_bytes(size, bits) for size in sizes]

    def _ranges(self, x: Elements, rest: Elements | None) -> np.ndarray:
        """The smallest and the largest value of each quantized layer, of x + rest where there is a rest."""
        on, ranges = backend.of(x), np.zeros((len(self.selection.coded), 2), np.float32)
        for layer, range_ in zip(self.selection.coded, ranges, strict=True):
            if layer.size:
                range_[:] = on.uniform.extremes(x[layer.slice], _part(rest, layer))
            if not np.isfinite(range_).all():
                raise NotFinite.of(f"layer {layer.name}")
        return ranges

    def _rules(self, ranges: np.ndarray, bits: int, key: Key | None) -> list[_Rule]:
        """How each quantized layer's values become levels."""
        if self.rounding == "nearest":
            return [_Rule(*_grid(range_, bits), bits, False, np.uint32(0)) for range_ in ranges]
        if key is None:
            raise CodecError("rounding at random needs a key")
        drawn = [np.uint32(key.layer(index)) for index in self.selection.indexes]
        return [_Rule(*_grid(range_, bits), bits, True, one) for range_, one in zip(ranges, drawn, strict=True)]


class _Rule(NamedTuple):
    """How the values of one layer become levels."""

    low: float
    step: float
    bits: int
    random: bool
    key: np.uint32


def _checked(bits: int) -> int:
    if not 1 <= bits <= MAX_BITS:
        raise CodecError(f"uniform quantization takes 1 to {MAX_BITS} bits, not {bits}")
    return bits


def _grid(range_: np.ndarray, bits: int) -> tuple[float, float]:
    """(low, step) in float64, where the widest and the narrowest range of float32 have a step."""
    low, high = map(float, range_)
    return low, (high - low) / (2**bits - 1)


def _part(rest: Elements | None, layer: Layer) -> Elements | None:
    """A layer's part of what goes with a vector, if anything does."""
    return None if rest is None else rest[layer.slice]


codec("uniform 2-bit")(lambda layout: Uniform(layout, bits=2))
codec("uniform 4-bit")(lambda layout: Uniform(layout, bits=4))
codec("uniform 8-bit")(lambda layout: Uniform(layout, bits=8))
