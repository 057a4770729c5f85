"""k-bit vectors that stay on the device: `testbed.codecs.uniform`, in one pass over all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.device.planar import shifted
from testbed.codecs.resident import base
from testbed.codecs.resident.base import Measures, Planes, Resident, extended, hashed, keys_of
from testbed.codecs.uniform import MAX_BITS, Uniform
from testbed.gpu.graphs import Pass


class UniformResident(Resident):
    """Uniform levels from a layer's smallest value to its largest, of always the same bits."""

    codec: Uniform

    def __init__(self, codec: Uniform, device: torch.device) -> None:
        layers = codec.selection.coded
        super().__init__(codec, device, layers)
        sizes = [layer.size for layer in layers]
        size = self.layout.size
        self._measures = Measures(layers, size, device)
        padded = self.moved(np.concatenate([np.empty(0, np.int64), *map(_filled, layers)]))
        self._padded = padded  # blocks filled up with a value of their layer's own: a zero might be the smallest
        owner, number = base.byte_owner(sizes)
        self._owner, self._begun = self.moved(owner), self.moved(base.counters(number))
        order = np.concatenate([np.empty(0, np.int64), *(np.arange(each.offset, each.end) for each in layers)])
        self._order = self.moved(order)
        floats = [np.arange(each.offset, each.end) for each in codec.selection.floats]
        kept = np.concatenate([np.empty(0, np.int64), *floats])
        self._floats, self._sources = self.moved(kept), self.moved(base.sources(order, kept, size))
        self._planes = None if codec.bits == MAX_BITS else Planes(sizes, codec.bits, device)
        if self._planes is not None:
            self._places = self.moved(self._planes.places.reshape(-1))
        self._bits = self.moved(np.array([codec.bits], np.uint8))
        self._pack, self._unpack = (Pass(work, size) for work in (self._packed, self._unpacked))

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """Quantize and pack; see `Uniform.encode`."""
        drawn = self.codec.rounding == "random"
        keys = keys_of(key, self.codec.selection.indexes) if drawn and key is not None else np.zeros(0, np.int32)
        tops, *buffers = self._pack(self.checked(vector), torch.from_numpy(keys))
        self.doubts.note(tops)
        return [self._bits.clone(), *buffers]

    def _packed(self, x: Tensor, keys: Tensor) -> list[Tensor]:
        bits = _flipped(x.index_select(0, self._padded).view(torch.int32)).view(-1, base.BLOCK)
        low, high = self._measures.largest(bits.amin(1), "amin"), self._measures.largest(bits.amax(1))
        low, high = (_flipped(end).view(torch.float32) for end in (low, high))
        start, step = self._grid(low, high)
        part: float | Tensor = 0.5
        if len(keys):
            part = shifted(hashed(self._begun, keys.index_select(0, self._owner)), 1).double() * 2.0**-31
        factor = torch.where(step > 0, 1 / step, 0.0)
        values = x.index_select(0, self._order).double() - start.index_select(0, self._owner)
        levels = (values * factor.index_select(0, self._owner) + part).to(torch.int32)
        if self._planes is None:
            packed = levels.to(torch.uint8)
        else:
            packed = self._planes.pack(extended(levels).index_select(0, self._places).view(self._planes.places.shape))
        ranges = torch.stack([low, high], 1).view(-1)
        return [torch.maximum(low.abs(), high.abs()), ranges, x.index_select(0, self._floats), packed]

    def _grid(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        levels = torch.full_like(low, 2**self.codec.bits - 1, dtype=torch.float64)
        return low.double(), (high.double() - low.double()) / levels

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        (vector,) = self._unpack(*buffers[1:])
        return vector

    def _unpacked(self, ranges: Tensor, floats: Tensor, packed: Tensor) -> list[Tensor]:
        start, step = self._grid(*ranges.view(-1, 2).unbind(1))
        levels = packed
        if self._planes is not None:
            levels = self._planes.unpack(packed).view(-1).index_select(0, self._planes.inverse)
        values = levels.double() * step.index_select(0, self._owner) + start.index_select(0, self._owner)
        return [torch.cat([values.float(), floats]).index_select(0, self._sources)]


def _filled(layer: base.Layer) -> np.ndarray:
    """A layer's elements in blocks, the last filled up with its first element."""
    places = np.full(-(-layer.size // base.BLOCK) * base.BLOCK, layer.offset, np.int64)
    places[: layer.size] = np.arange(layer.offset, layer.end)
    return places


def _flipped(bits: Tensor) -> Tensor:
    """The int32 that compare as the floats of these bits do; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
