"""QSGD: each bucket of a vector quantized at random to s levels of its norm, without bias.

Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NIPS 2017. An element x of a bucket with norm m becomes sign(x) * m * l / s, where l is |x| * s / m rounded up or down
at random (section 3.1). The norm is the bucket's largest magnitude, as in the paper's experiments (section 5), or its
Euclidean norm, as in its theorems: for that the mean square error is at most min(d / s^2, sqrt(d) / s) times the
bucket's mean square, d its elements (lemma 3.1). Layers of fewer than 10,000 elements stay in float32 (section 5).

A message has three buffers; numbers are little-endian:

1. norms: a float32 a bucket, layer after layer; the last bucket of a layer may be shorter;
2. floats: the float32 values of the layers that are not quantized, one after the other;
3. levels. With coding "fixed" they are raised by s to 0 .. 2s, ceil(log2(2s + 1)) bits each, for each quantized layer
   a run of bit planes as in `testbed.codecs.levels`. With coding "elias" they are the streams of
   `testbed.codecs.lossless.elias`.

Elias codes are one stream of bits after another: a vector on a GPU is quantized there, and its levels, a byte each,
are coded and decoded on the CPU.

With 7 levels, fixed coding takes 4.06 bits an element, norms included; Elias codes take 4.03 of Gaussian and 3.09 of
Laplacian values with norm "max", 1.46 and 1.36 with norm "euclidean". Above 7 levels of norm "max", fixed is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    Key,
    VectorCodec,
    WireBuffers,
    elements,
    expect,
    room,
    stretches,
    wire_array,
)
from testbed.codecs.kernels import qsgd as kernels
from testbed.codecs.kernels.planar import plane_bytes
from testbed.codecs.lossless.elias import EliasStreams
from testbed.codecs.registry import codec
from testbed.codecs.selection import Selection
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

Norm = Literal["max", "euclidean"]
Coding = Literal["fixed", "elias"]


class Quantized(NamedTuple):
    """A vector's quantized layers, one after the other, before coding.

    Parameters
    ----------
    norms : float32 [buckets]
    raised : uint8 [elements], levels plus s
    """

    norms: np.ndarray
    raised: np.ndarray


@codec("QSGD")
class QSGD(VectorCodec):
    """Stochastic quantization of buckets.

    Parameters
    ----------
    layout : the model
    levels : s, 1 to 127; 7 takes 4 bits an element
    bucket : elements of a bucket, a power of two up to 8,192
    norm : what a bucket's levels are parts of
    coding : "fixed" is fast; "elias" is smaller where few elements are not zero
    smallest : layers of fewer elements stay in float32
    """

    def __init__(
        self,
        layout: Layout,
        levels: int = 7,
        bucket: int = 512,
        norm: Norm = "max",
        coding: Coding = "fixed",
        smallest: int = 10_000,
    ) -> None:
        if not 1 <= levels <= kernels.MAX_LEVELS:
            raise CodecError(f"QSGD takes 1 to {kernels.MAX_LEVELS} levels, not {levels}")
        if not 1 <= bucket <= kernels.BLOCK or bucket.bit_count() != 1:
            raise CodecError(f"a bucket has a power of two of elements, at most {kernels.BLOCK}, not {bucket}")
        super().__init__(layout)
        self.levels = levels
        self.bucket = bucket
        self.norm = norm
        self.coding = coding
        self.costs_as = f"QSGD, {coding}"
        self.bits = (2 * levels).bit_length()
        self.selection = Selection(layout, lambda layer: layer.size >= smallest)
        sizes = [layer.size for layer in self.selection.coded]
        self.streams = EliasStreams([f"layer {layer.name}" for layer in self.selection.coded], sizes, levels)
        self._places = stretches(sizes)
        self._buckets = stretches(-(-size // bucket) for size in sizes)
        self._bucket_count = sum(-(-size // bucket) for size in sizes)
        self._runs = stretches(plane_bytes(size, self.bits) for size in sizes)
        self._level_bytes = sum(plane_bytes(size, self.bits) for size in sizes)

    @property
    def fixed_nbytes(self) -> int:
        """Exact bytes of a message with coding "fixed"."""
        return 4 * self._bucket_count + self.selection.nbytes + self._level_bytes

    def sizes(self) -> Sequence[int] | None:
        if self.coding == "elias":
            return None
        return [4 * self._bucket_count, self.selection.nbytes, self._level_bytes]

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """Quantize at random and code; CodecError names the layer that holds NaN or infinity."""
        x = elements(vector, self.layout)
        floats = self.selection.gather(x)
        if self.coding == "elias":
            quantized = self.quantize(vector, key)
            return [quantized.norms, floats, self.streams.pack(quantized.raised)]
        on = backend.of(x)
        norms, packed = self._pool.take(self._bucket_count, np.float32), self._pool.take(self._level_bytes)
        for position, layer in enumerate(self.selection.coded):
            here, run = norms[self._buckets[position]], packed[self._runs[position]]
            _require(on.qsgd.pack(x[layer.slice], run, here, *self._how(position, key), self.bits), layer)
        return [norms, floats, packed]

    def quantize(self, vector: torch.Tensor, key: Key) -> Quantized:
        """The norms and raised levels that `encode` codes; errors are those of `encode`."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        norms = self._pool.take(self._bucket_count, np.float32)
        raised = self._pool.take(sum(layer.size for layer in self.selection.coded))
        for position, layer in enumerate(self.selection.coded):
            here, place = norms[self._buckets[position]], raised[self._places[position]]
            _require(on.qsgd.quantize(x[layer.slice], place, here, *self._how(position, key)), layer)
        return Quantized(norms, raised)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write level * norm / s, the float layers as they came; see `Codec.decode`."""
        expect(buffers, ["norms", "floats", "levels"])
        norms = wire_array(buffers[0], np.float32, self._bucket_count, "norms")
        floats = self.selection.view(buffers[1])
        for layer, place in zip(self.selection.coded, self._buckets, strict=True):
            if not (np.isfinite(norms[place]) & (norms[place] >= 0)).all():
                raise CodecError(f"layer {layer.name}: a bucket's norm is finite and at least 0")
        if self.coding == "elias":
            raised = self.streams.unpack(buffers[2])
        else:
            packed = wire_array(buffers[2], np.uint8, self._level_bytes, "levels")
        vector, y = room(out, self.layout)
        on = backend.of(y)
        self.selection.scatter(floats, y)
        for position, layer in enumerate(self.selection.coded):
            part, here, how = y[layer.slice], norms[self._buckets[position]], (self.levels, self.bucket)
            if self.coding == "elias":
                on.qsgd.scale(raised[self._places[position]], part, here, *how)
            else:
                self._check_level(layer, on.qsgd.unpack(packed[self._runs[position]], part, here, *how, self.bits))
        return vector

    def _how(self, position: int, key: Key) -> tuple[int, int, bool, np.uint32]:
        """How the buckets of a layer are quantized."""
        drawn = np.uint32(key.layer(self.selection.indexes[position]))
        return self.levels, self.bucket, self.norm == "euclidean", drawn

    def _check_level(self, layer: Layer, largest: int) -> None:
        if largest > 2 * self.levels:
            raise CodecError(f"layer {layer.name}: a level beyond -{self.levels} .. {self.levels}")


def _require(finite: bool, layer: Layer) -> None:
    if not finite:
        raise NotFinite.of(f"layer {layer.name}")
