"""k-bit vectors that stay on the device: `testbed.codecs.uniform`, in one pass over all layers.

How many bits a message has, its sender knows without asking the device. That byte of a message stays on the CPU, so
that whoever reads it need not wait either.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.device.planar import shifted
from testbed.codecs.resident import base
from testbed.codecs.resident.base import Blocks, ElementPlanes, Resident, extended, hashed, keys_of
from testbed.codecs.uniform import MAX_BITS, Uniform
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass
from testbed.gpu.moves import upload


class UniformResident(Resident):
    """Uniform levels from a layer's smallest value to its largest, of as many bits as a message is to have."""

    codec: Uniform

    def __init__(self, codec: Uniform, device: torch.device) -> None:
        super().__init__(codec, device, [*codec.selection.coded, *codec.selection.floats])
        self._places = Places(codec, device)
        self._passes: dict[int, Passes] = {}  # by bits

    def encode(self, vector: Tensor, key: Key | None = None, bits: int | None = None) -> list[Tensor]:
        """Quantize and pack; see `Uniform.encode`."""
        passes = self._of(self.codec.bits_of(bits))
        tops, *buffers = passes.pack(self.checked(vector), self._keys(key))
        self.doubts.note(tops)
        return [passes.told(), *buffers]

    def encode_with_feedback(
        self, vector: Tensor, residual: Tensor, key: Key | None = None, bits: int | None = None
    ) -> list[Tensor]:
        """Encode vector + residual; `residual` [layout.size], on the device, becomes what the message leaves of it.

        Where the sum is not finite the residual is changed, too: the error is told later.
        """
        passes = self._of(self.codec.bits_of(bits))
        inputs = self.checked(vector), self.checked(residual), self._keys(key)
        tops, left, *buffers = passes.pack_with_feedback(*inputs)
        self.doubts.note(tops)
        residual.copy_(left)
        return [passes.told(), *buffers]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        bits, *others = buffers
        (vector,) = self._of(int(bits)).unpack(*others)
        return vector

    def _of(self, bits: int) -> Passes:
        if bits not in self._passes:
            self._passes[bits] = Passes(self._places, bits, self.codec.layout.size, self.device)
        return self._passes[bits]

    def _keys(self, key: Key | None) -> Tensor:
        """Of the layers' random numbers (int32 [layers]); none where none are drawn."""
        if self.codec.rounding == "nearest":
            return torch.empty(0, dtype=torch.int32)
        if key is None:
            raise CodecError("rounding at random needs a key")
        return torch.from_numpy(keys_of(key, self.codec.selection.indexes))


class Places:
    """Where the elements of the layers lie, whatever the bits.

    Attributes
    ----------
    sizes : of the quantized layers
    blocks, others : the quantized layers and those in float32
    padded : of `blocks`, each filled up with a value of its layer's own: a zero might be the smallest
    owner, begun : of each quantized element its layer and the beginning of its random numbers
    order, floats : the quantized elements and those in float32, of a vector
    sources : of each element of a vector its place among the quantized ones with the others behind them
    """

    def __init__(self, codec: Uniform, device: torch.device) -> None:
        layers, others, size = codec.selection.coded, codec.selection.floats, codec.layout.size
        self.sizes = [layer.size for layer in layers]
        self.blocks, self.others = Blocks(layers, size, device), Blocks(others, size, device)
        self.padded = upload(np.concatenate([np.empty(0, np.int64), *map(_filled, layers)]), device)
        owner, number = base.byte_owner(self.sizes)
        self.owner, self.begun = upload(owner, device), upload(base.counters(number), device)
        order, floats = base.elements_of(layers), base.elements_of(others)
        self.order, self.floats = upload(order, device), upload(floats, device)
        self.sources = upload(base.sources(order, floats, size), device)


class Passes:
    """What makes and reads the messages of so many bits.

    Attributes
    ----------
    pack : (vector, keys) to [the layers' largest magnitudes, ranges, floats, levels]
    pack_with_feedback : (vector, residual, keys) to [the same magnitudes, what is left of the sum, and the rest]
    unpack : (ranges, floats, levels) to [the vector]
    """

    def __init__(self, places: Places, bits: int, size: int, device: torch.device) -> None:
        self._at, self._bits = places, bits
        self._planes = None if bits == MAX_BITS else ElementPlanes(places.sizes, bits, device)
        works = self._packed, self._packed_with_feedback, self._unpacked
        self.pack, self.pack_with_feedback, self.unpack = (Pass(work, size) for work in works)

    def told(self) -> Tensor:
        """The byte of a message that says how many bits."""
        return torch.tensor([self._bits], dtype=torch.uint8)

    def _packed(self, x: Tensor, keys: Tensor) -> list[Tensor]:
        tops, ranges, floats, levels = self._quantized(x, keys)
        return [tops, ranges, floats, self._joined(levels)]

    def _packed_with_feedback(self, x: Tensor, rest: Tensor, keys: Tensor) -> list[Tensor]:
        total = rest + x
        tops, ranges, floats, levels = self._quantized(total, keys)
        return [tops, total - self._values(ranges, floats, levels), ranges, floats, self._joined(levels)]

    def _joined(self, levels: Tensor) -> Tensor:
        return levels.to(torch.uint8) if self._planes is None else self._planes.pack(levels)

    def _quantized(self, x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The largest magnitudes, and a message whose levels (int32) are not packed."""
        at = self._at
        bits = _flipped(x.index_select(0, at.padded).view(torch.int32)).view(-1, base.BLOCK)
        low, high = at.blocks.largest(bits.amin(1), "amin"), at.blocks.largest(bits.amax(1))
        low, high = (_flipped(end).view(torch.float32) for end in (low, high))
        start, step = self._grid(low, high)
        part: float | Tensor = 0.5
        if len(keys):
            part = shifted(hashed(at.begun, keys.index_select(0, at.owner)), 1).double() * 2.0**-31
        factor = torch.where(step > 0, 1 / step, 0.0)
        values = x.index_select(0, at.order).double() - start.index_select(0, at.owner)
        levels = (values * factor.index_select(0, at.owner) + part).to(torch.int32)
        tops = torch.maximum(low.abs(), high.abs())
        if len(at.floats):
            tops = torch.cat([tops, at.others.peaks(extended(x))])
        return tops, torch.stack([low, high], 1).view(-1), x.index_select(0, at.floats), levels

    def _unpacked(self, ranges: Tensor, floats: Tensor, packed: Tensor) -> list[Tensor]:
        return [self._values(ranges, floats, packed if self._planes is None else self._planes.unpack(packed))]

    def _values(self, ranges: Tensor, floats: Tensor, levels: Tensor) -> Tensor:
        """The vector that levels [elements] stand for."""
        at = self._at
        start, step = self._grid(*ranges.view(-1, 2).unbind(1))
        values = levels.double() * step.index_select(0, at.owner) + start.index_select(0, at.owner)
        return torch.cat([values.float(), floats]).index_select(0, at.sources)

    def _grid(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        levels = torch.full_like(low, 2**self._bits - 1, dtype=torch.float64)
        return low.double(), (high.double() - low.double()) / levels


def _filled(layer: base.Layer) -> np.ndarray:
    """A layer's elements in blocks, the last filled up with its first element."""
    places = np.full(-(-layer.size // base.BLOCK) * base.BLOCK, layer.offset, np.int64)
    places[: layer.size] = np.arange(layer.offset, layer.end)
    return places


def _flipped(bits: Tensor) -> Tensor:
    """The int32 that compare as the floats of these bits do; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
