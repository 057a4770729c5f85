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
   a run of bit planes as in `testbed.codecs.levels`. With coding "elias" they are `testbed.codecs.elias`'s streams.

Elias codes are one stream of bits after another: a vector on a GPU is quantized there, and its levels, a byte each,
are coded and decoded on the CPU.

With 7 levels, fixed coding takes 4.06 bits an element, norms included; Elias codes take 4.03 of Gaussian and 3.09 of
Laplacian values with norm "max", 1.46 and 1.36 with norm "euclidean". Above 7 levels of norm "max", fixed is smaller.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch

from testbed.codecs import compiled, level_kernels, qsgd_kernels
from testbed.codecs.base import (
    Buffers,
    Elements,
    Key,
    WireBuffers,
    elements,
    expect,
    room,
    stretches,
    to_device,
    to_host,
    wire_array,
)
from testbed.codecs.buffers import BufferPool
from testbed.codecs.device import planes
from testbed.codecs.device import qsgd as on_device
from testbed.codecs.elias import EliasStreams
from testbed.codecs.selection import Selection
from testbed.codecs.threads import CHUNK, in_chunks
from testbed.errors import CodecError
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


class QSGD:
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
        if not 1 <= levels <= qsgd_kernels.MAX_LEVELS:
            raise CodecError(f"QSGD takes 1 to {qsgd_kernels.MAX_LEVELS} levels, not {levels}")
        if not 1 <= bucket <= qsgd_kernels.BLOCK or bucket.bit_count() != 1:
            raise CodecError(f"a bucket has a power of two of elements, at most {qsgd_kernels.BLOCK}, not {bucket}")
        compiled.warm_up()
        self.layout = layout
        self.levels = levels
        self.bucket = bucket
        self.norm = norm
        self.coding = coding
        self.bits = (2 * levels).bit_length()
        self.selection = Selection(layout, lambda layer: layer.size >= smallest)
        sizes = [layer.size for layer in self.selection.coded]
        self._streams = EliasStreams([f"layer {layer.name}" for layer in self.selection.coded], sizes, levels)
        self._places = stretches(sizes)
        self._pool = BufferPool()
        self._buckets = stretches(-(-size // bucket) for size in sizes)
        self._bucket_count = sum(-(-size // bucket) for size in sizes)
        self._runs = stretches(self.bits * -(-size // level_kernels.PLANES) for size in sizes)
        self._level_bytes = sum(self.bits * -(-size // level_kernels.PLANES) for size in sizes)

    @property
    def fixed_nbytes(self) -> int:
        """Exact bytes of a message with coding "fixed"."""
        return 4 * self._bucket_count + self.selection.nbytes + self._level_bytes

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """Quantize at random and code; CodecError names the layer that holds NaN or infinity."""
        x = elements(vector, self.layout)
        floats = self.selection.gather(x)
        if self.coding == "elias":
            quantized = self.quantize(vector, key)
            return [quantized.norms, floats, self._streams.pack(quantized.raised)]
        norms, packed = self._pool.take(self._bucket_count, np.float32), self._pool.take(self._level_bytes)
        for position, layer in enumerate(self.selection.coded):
            here, run = norms[self._buckets[position]], packed[self._runs[position]]
            self._pack_layer(layer, x[layer.slice], here, run, self._drawn(position, key))
        return [norms, floats, packed]

    def quantize(self, vector: torch.Tensor, key: Key) -> Quantized:
        """The norms and raised levels that `encode` codes; errors are those of `encode`."""
        x = elements(vector, self.layout)
        norms = self._pool.take(self._bucket_count, np.float32)
        raised = self._pool.take(sum(layer.size for layer in self.selection.coded))
        for position, layer in enumerate(self.selection.coded):
            here, place = norms[self._buckets[position]], raised[self._places[position]]
            self._quantize_layer(layer, x[layer.slice], here, place, self._drawn(position, key))
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
            raised = self._streams.unpack(buffers[2])
        else:
            packed = wire_array(buffers[2], np.uint8, self._level_bytes, "levels")
        vector, y = room(out, self.layout)
        self.selection.scatter(floats, y)
        for position, layer in enumerate(self.selection.coded):
            here = norms[self._buckets[position]]
            if self.coding == "elias":
                self._scale_layer(raised[self._places[position]], here, y[layer.slice])
            else:
                self._unpack_layer(layer, packed[self._runs[position]], here, y[layer.slice])
        return vector

    def _drawn(self, position: int, key: Key) -> np.uint32:
        return np.uint32(key.layer(self.selection.indexes[position]))

    def _how(self, start: int, drawn: np.uint32) -> tuple[int, int, bool, int, np.uint32]:
        return self.levels, self.bucket, self.norm == "euclidean", start, drawn

    def _quantized_there(self, layer: Layer, x: torch.Tensor, norms: np.ndarray, drawn: np.uint32) -> torch.Tensor:
        """The raised levels of a layer on a device, and its norms here."""
        raised, found = on_device.qsgd_quantize(x, self.levels, self.bucket, self.norm == "euclidean", drawn)
        norms[:] = to_host(found)
        _require(bool(np.isfinite(norms).all()), layer)
        return raised

    def _quantize_layer(
        self, layer: Layer, x: Elements, norms: np.ndarray, raised: np.ndarray, drawn: np.uint32
    ) -> None:
        if isinstance(x, torch.Tensor):
            raised[:] = to_host(self._quantized_there(layer, x, norms, drawn))
            return

        def quantize(start: int, stop: int) -> bool:
            here = norms[start // self.bucket :]
            return qsgd_kernels.qsgd_quantize(x[start:stop], raised[start:stop], here, *self._how(start, drawn))

        _require(all(in_chunks(quantize, x.size)), layer)

    def _pack_layer(self, layer: Layer, x: Elements, norms: np.ndarray, run: np.ndarray, drawn: np.uint32) -> None:
        if isinstance(x, torch.Tensor):
            run[:] = to_host(planes.levels_pack(self._quantized_there(layer, x, norms, drawn), self.bits))
            return

        def pack(start: int, stop: int) -> bool:
            here, out = norms[start // self.bucket :], run[self.bits * start // level_kernels.PLANES :]
            return qsgd_kernels.qsgd_pack(x[start:stop], out, here, *self._how(start, drawn), self.bits)

        _require(all(in_chunks(pack, x.size)), layer)

    def _unpack_layer(self, layer: Layer, run: np.ndarray, norms: np.ndarray, y: Elements) -> None:
        if isinstance(y, torch.Tensor):
            raised = planes.levels_unpack(to_device(run, y), len(y), self.bits)
            self._check_level(layer, int(raised.max().item()) if layer.size else 0)
            y.copy_(on_device.qsgd_scale(raised, to_device(norms, y), self.levels, self.bucket))
            return

        def unpack(start: int, stop: int) -> int:
            packed, here = run[self.bits * start // level_kernels.PLANES :], norms[start // self.bucket :]
            return qsgd_kernels.qsgd_unpack(packed, y[start:stop], here, self.levels, self.bucket, self.bits)

        self._check_level(layer, max(in_chunks(unpack, y.size), default=0))

    def _check_level(self, layer: Layer, largest: int) -> None:
        if largest > 2 * self.levels:
            raise CodecError(f"layer {layer.name}: a level beyond -{self.levels} .. {self.levels}")

    def _scale_layer(self, raised: np.ndarray, norms: np.ndarray, y: Elements) -> None:
        if isinstance(y, torch.Tensor):
            y.copy_(on_device.qsgd_scale(to_device(raised, y), to_device(norms, y), self.levels, self.bucket))
            return

        def scale(start: int, stop: int) -> None:
            here = norms[start // self.bucket :]
            qsgd_kernels.qsgd_scale(raised[start:stop], y[start:stop], here, self.levels, self.bucket)

        in_chunks(scale, y.size)


def _require(finite: bool, layer: Layer) -> None:
    if not finite:
        raise CodecError(f"layer {layer.name}: NaN or infinity among its values")


assert CHUNK % qsgd_kernels.BLOCK == 0  # a chunk begins at a bucket and at a block
