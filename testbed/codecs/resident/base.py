"""What codecs share whose messages stay on the device: where things lie in them, and what is not looked at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key, elements
from testbed.codecs.costs import row_of
from testbed.codecs.device.planar import shifted, signed
from testbed.codecs.kernels.planar import PLANES, R1, R2, R3, SEGMENT
from testbed.errors import CodecError
from testbed.gpu.doubts import Doubts
from testbed.gpu.moves import upload
from testbed.layout import Layer

BLOCK = 1024  # elements of a layer that are measured together


class Resident(ABC):
    """A codec's twin on a device.

    Parameters
    ----------
    codec : the one for the CPU, of which it makes the same bytes
    device : where vectors and messages are
    measured : the layers whose magnitudes are looked at later

    Attributes
    ----------
    layout, sizes, cost, costs_as : the codec's
    """

    def __init__(self, codec: Any, device: torch.device, measured: Sequence[Layer]) -> None:
        self.codec, self.device = codec, device
        self.layout, self.sizes = codec.layout, codec.sizes
        self.costs_as = row_of(codec)
        self.doubts = Doubts([layer.name for layer in measured], device)
        self._last: tuple[Any, Tensor] | None = None  # a message, and what it decodes to

    def decode(self, buffers: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Decode into `out` or a fresh vector [layout.size]; what many receive alike is decoded once."""
        vector = self.shared(buffers)
        return vector.clone() if out is None else out.copy_(vector)

    def shared(self, buffers: Sequence[Tensor]) -> Tensor:
        """What a message decodes to, decoded once, and not to be written to."""
        if self._last is None or self._last[0] is not buffers[-1]:
            self._last = buffers[-1], self._decoded(buffers)
        return self._last[1]

    def shared_all(self, messages: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """What several messages decode to, not to be written to."""
        return list(map(self.shared, messages))

    @abstractmethod
    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        """What a message decodes to: a vector [layout.size] that `decode` copies from, and nobody writes to."""

    def checked(self, vector: Tensor) -> Tensor:
        """A vector of the layout on the device, as it lies there."""
        x = torch.as_tensor(elements(vector, self.layout))
        if x.device.type != self.device.type:
            raise CodecError(f"this codec's vectors are on {self.device}, not on {vector.device}")
        return x

    def moved(self, values: np.ndarray) -> Tensor:
        """A table of this codec on its device."""
        return upload(values, self.device)


def keys_of(key: Key, indexes: Sequence[int]) -> np.ndarray:
    """The 32 bits of each layer's draws, as int32."""
    return np.array([key.layer(index) for index in indexes], np.uint32).view(np.int32)


# --- where things lie ---------------------------------------------------------------------------------------------


class Blocks:
    """Layers cut into blocks of `width` elements, the last filled up with zeros.

    What is measured of blocks is brought together for each layer, in a few operations for all of them.
    """

    def __init__(self, layers: Sequence[Layer], nothing: int, device: torch.device, width: int = BLOCK) -> None:
        counts = np.array([-(-layer.size // width) for layer in layers], np.int64)
        places = np.full((int(counts.sum()), width), nothing, np.int64)
        start = 0
        for layer, count in zip(layers, counts.tolist(), strict=True):
            places[start : start + count].reshape(-1)[: layer.size] = np.arange(layer.offset, layer.end)
            start += count
        self.owners = np.repeat(np.arange(len(layers)), counts)  # of each block its layer's number
        self._shape = places.shape
        self._places, self._owner = upload(places.reshape(-1), device), upload(self.owners, device)
        self._count = len(layers)

    def blocks(self, extended: Tensor) -> Tensor:
        """The layers' elements [blocks, width] of a vector with a zero behind its end."""
        return extended.index_select(0, self._places).view(self._shape)

    def tops(self, x: Tensor) -> Tensor:
        """The largest magnitude [layers] of a vector in each layer; NaN where there is one."""
        return self.peaks(extended(x))

    def of_block(self, values: Tensor) -> Tensor:
        """A value of each layer for each of its blocks [blocks, 1]."""
        return values.index_select(0, self._owner).view(-1, 1)

    def largest(self, of_blocks: Tensor, reduce: str = "amax") -> Tensor:
        """The largest (or with "amin" the smallest) [layers] of values [blocks]; NaN where there is one."""
        first = torch.zeros(self._count, dtype=of_blocks.dtype, device=of_blocks.device)
        return first.scatter_reduce(0, self._owner, of_blocks, reduce, include_self=False)

    def peaks(self, extended: Tensor) -> Tensor:
        """The largest magnitude of each layer [layers] of a vector with a zero behind its end."""
        return self.largest(self.blocks(extended).abs().amax(1))


class Measures(Blocks):
    """Sums, too: blocks are added up first, in float64, and then those of each layer.

    Nothing depends on the order in which a device happens to add.
    """

    def __init__(self, layers: Sequence[Layer], nothing: int, device: torch.device) -> None:
        super().__init__(layers, nothing, device)
        whose = (self.owners == np.arange(len(layers))[:, None]).astype(np.float64)
        self._whose = upload(whose, device)

    def sums(self, *of_blocks: Tensor) -> Tensor:
        """Sums over layers of some float64 [blocks]: [how many, layers]."""
        return torch.stack(of_blocks) @ self._whose.T


class Rows:
    """`Measures` of many layers of a few blocks at most: each is one row, filled up with zeros.

    Parameters
    ----------
    length : of a row
    """

    def __init__(self, layers: Sequence[Layer], length: int, nothing: int, device: torch.device) -> None:
        places = np.full((len(layers), length), nothing, np.int64)
        for row, layer in zip(places, layers, strict=True):
            row[: layer.size] = np.arange(layer.offset, layer.end)
        self._shape, self._places = places.shape, upload(places.reshape(-1), device)

    def blocks(self, extended: Tensor) -> Tensor:
        """See `Measures.blocks`: [layers, length]."""
        return extended.index_select(0, self._places).view(self._shape)

    def of_block(self, values: Tensor) -> Tensor:
        """See `Measures.of_block`."""
        return values.view(-1, 1)

    def sums(self, *of_rows: Tensor) -> Tensor:
        """See `Measures.sums`."""
        return torch.stack(of_rows)

    def largest(self, of_rows: Tensor) -> Tensor:
        """See `Measures.largest`."""
        return of_rows


def extended(x: Tensor) -> Tensor:
    """A vector with a zero behind its end, which stands wherever there is nothing."""
    return torch.cat([x, x.new_zeros(1)])


def planar_places(sizes: Sequence[int], starts: Sequence[int], segments: int, nothing: int) -> np.ndarray:
    """Which element (int64 [segments, bytes]) a digit of a planar run stands for; see `testbed.codecs.trits`.

    Parameters
    ----------
    sizes, starts : of the runs' layers
    segments : of a block
    nothing : what a digit past a layer's end stands for
    """
    runs = []
    for size, start in zip(sizes, starts, strict=True):
        full = segments * SEGMENT
        count = size // full
        places = np.arange(count * full).reshape(count, segments, SEGMENT).transpose(1, 0, 2).reshape(segments, -1)
        rest = size - count * full
        if rest:
            width = -(-rest // segments)
            last = count * full + np.arange(segments * width).reshape(segments, width)
            places = np.concatenate([places, np.where(last < size, last, -start - 1)], 1)
        places = places + start
        runs.append(np.where(places < 0, nothing, places))
    return np.concatenate([np.empty((segments, 0), np.int64), *runs], 1)


def inverse_of(places: np.ndarray, count: int) -> np.ndarray:
    """At which of the flattened places each of `count` elements is."""
    flat = places.reshape(-1)
    known = flat < count
    inverse = np.zeros(count, np.int64)
    inverse[flat[known]] = np.arange(flat.size)[known]
    return inverse


def sources(places: np.ndarray, floats: np.ndarray, size: int) -> np.ndarray:
    """Where each element of a vector comes from, in the decoded digits at `places` and the float layers behind them.

    Looked up, not written to its place: a device writes to places in any order, and is slow where it may not.
    """
    flat = places.reshape(-1)
    known = flat < size
    found = np.zeros(size, np.int64)
    found[flat[known]] = np.arange(flat.size)[known]
    found[floats] = flat.size + np.arange(floats.size)
    return found


def elements_of(layers: Sequence[Layer]) -> np.ndarray:
    """Which elements of a vector these layers are, one layer after the other (int64)."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(layer.offset, layer.end) for layer in layers)])


def byte_owner(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """For each byte of runs of these lengths its run's number, and its number in the run."""
    owner = np.repeat(np.arange(len(lengths)), np.array(lengths, np.int64))
    return owner, np.concatenate([np.empty(0, np.int64), *(np.arange(length) for length in lengths)])


# --- bit planes ---------------------------------------------------------------------------------------------------


class Planes:
    """Small whole numbers as bit planes; see `testbed.codecs.levels`.

    Parameters
    ----------
    sizes : of the layers, which lie one after the other from 0 on; what is past an end is nothing
    bits : of a number
    """

    def __init__(self, sizes: Sequence[int], bits: int, device: torch.device) -> None:
        starts = np.cumsum([0, *sizes])[:-1].tolist()
        count = int(sum(sizes))
        places = planar_places(sizes, starts, PLANES, count)
        order: list[np.ndarray] = []
        begun, wide = 0, places.shape[1]
        for size in sizes:
            full = size // (PLANES * SEGMENT)
            rest = size - full * PLANES * SEGMENT
            for width in [*[SEGMENT] * full, *([-(-rest // PLANES)] if rest else [])]:
                order += [bit * wide + np.arange(begun, begun + width) for bit in range(bits)]
                begun += width
        packed = np.concatenate([np.empty(0, np.int64), *order])
        back = np.empty_like(packed)
        back[packed] = np.arange(packed.size)
        self.bits, self.width = bits, wide
        self.places = places  # [8, width] of elements
        self._order, self._back = upload(packed, device), upload(back, device)
        self._segment = torch.arange(PLANES, dtype=torch.int32, device=device).view(PLANES, 1)
        self._bit = torch.arange(bits, dtype=torch.int32, device=device).view(bits, 1, 1)

    def pack(self, numbers: Tensor) -> Tensor:
        """Pack int32 [8, width]: uint8 [bits * width], in the order of a message."""
        planes = (((numbers >> self._bit) & 1) << self._segment).sum(1, dtype=torch.uint8)
        return planes.view(-1).index_select(0, self._order)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`."""
        planes = packed.index_select(0, self._back).view(self.bits, 1, self.width).to(torch.int32)
        return (((planes >> self._segment) & 1) << self._bit).sum(0, dtype=torch.int32)


class ElementPlanes(Planes):
    """`Planes` of numbers that lie one after the other, as the elements of layers do."""

    def __init__(self, sizes: Sequence[int], bits: int, device: torch.device) -> None:
        super().__init__(sizes, bits, device)
        self._places = upload(self.places.reshape(-1), device)
        self._inverse = upload(inverse_of(self.places, int(sum(sizes))), device)

    def pack(self, numbers: Tensor) -> Tensor:
        """Pack whole numbers [elements]; past a layer's end are zeros."""
        return super().pack(extended(numbers).index_select(0, self._places).view(self.places.shape))

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`: int32 [elements]."""
        return super().unpack(packed).view(-1).index_select(0, self._inverse)


# --- random numbers: `testbed.codecs.device.planar.hashed`, of all layers at once -----------------------------------


def counters(numbers: np.ndarray) -> np.ndarray:
    """The part of the hash of counters that no key is in yet, as int32."""
    h = numbers.astype(np.uint32)
    return ((h ^ (h >> np.uint32(17))) * R1).view(np.int32)


FACTORS = (signed(int(R1)), signed(int(R2)))  # between the digits of a byte


def hashed(begun: Tensor, keys: Tensor) -> Tensor:
    """32 random bits (int32 [n]) of `counters` that have a key each."""
    h = begun ^ keys
    h = h ^ shifted(h, 11)
    h = h * signed(int(R2))
    h = h ^ shifted(h, 15)
    h = h * signed(int(R3))
    return h ^ shifted(h, 14)
