"""QSGD messages that stay on the device: `testbed.codecs.qsgd`, in one pass over the buckets of all layers.

With coding "elias" the CPU codes the levels (`testbed.codecs.resident.streams`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.device.planar import quotient, shifted
from testbed.codecs.kernels.qsgd import LARGEST, UNIT
from testbed.codecs.qsgd import QSGD
from testbed.codecs.resident import base, streams
from testbed.codecs.resident.base import Blocks, ElementPlanes, Resident, extended, hashed, keys_of
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass


class QSGDResident(Resident):
    """Stochastic quantization of buckets; Euclidean norms are equal to the CPU's to rounding."""

    codec: QSGD

    def __init__(self, codec: QSGD, device: torch.device) -> None:
        layers, others, size = codec.selection.coded, codec.selection.floats, codec.layout.size
        super().__init__(codec, device, [*layers, *others])
        sizes = [layer.size for layer in layers]
        self._buckets, self._others = Blocks(layers, size, device, codec.bucket), Blocks(others, size, device)
        # Buckets are rows, the last of a layer filled up; the places of elements in these rows.
        owner, number = base.byte_owner([-(-size // codec.bucket) * codec.bucket for size in sizes])
        real = np.flatnonzero(number < np.array(sizes, np.int64)[owner])
        self._begun, self._real = self.moved(base.counters(number)), self.moved(real)
        self._bucket_of = self.moved(real // codec.bucket)
        order, floats = base.elements_of(layers), base.elements_of(others)
        self._floats, self._sources = self.moved(floats), self.moved(base.sources(order, floats, size))
        self._planes = None if codec.coding == "elias" else ElementPlanes(sizes, codec.bits, device)
        self._pack, self._unpack = (Pass(work, size) for work in (self._packed, self._unpacked))

    def encode(self, vector: Tensor, key: Key) -> list[Tensor]:
        """Quantize at random and code; see `QSGD.encode`."""
        keys = torch.from_numpy(keys_of(key, self.codec.selection.indexes))
        tops, norms, floats, levels = self._pack(self.checked(vector), keys)
        self.doubts.note(tops)
        return [norms, floats, levels if self._planes is not None else streams.coded(self.codec.streams, levels)]

    def _packed(self, x: Tensor, keys: Tensor) -> list[Tensor]:
        whole, s = extended(x), self.codec.levels
        rows = self._buckets.blocks(whole)
        norms = self._norms(rows)
        factors = torch.where(norms > 0, quotient(s * UNIT, norms.double()), 0.0)
        sizes = rows.abs().double() * factors.view(-1, 1)
        sizes = sizes.nan_to_num().to(torch.int32)  # what is no number is told later: until then it has a code
        drawn = hashed(self._begun.view(rows.shape), self._buckets.of_block(keys))
        level = (sizes + shifted(drawn, 8)) >> 24
        raised = (torch.where(torch.signbit(rows), -level, level) + s).to(torch.uint8)
        levels = raised.view(-1).index_select(0, self._real)
        tops = torch.cat([self._buckets.largest(norms), self._others.peaks(whole)])
        floats = x.index_select(0, self._floats)
        return [tops, norms, floats, levels if self._planes is None else self._planes.pack(levels)]

    def _norms(self, rows: Tensor) -> Tensor:
        """The scale of each bucket, float32 and at least as large as every magnitude in it."""
        largest = rows.abs().amax(1)
        if self.codec.norm == "max":
            return largest
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).clamp(max=LARGEST)
        return torch.where(largest.isfinite(), torch.maximum(norms, largest.double()).float(), largest)

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        if len(buffers) != 3:
            raise CodecError(f"a message of 3 buffers (norms, floats, levels) came as {len(buffers)}")
        norms, floats, levels = buffers
        if self._planes is None:
            levels = streams.symbols_of(self.codec.streams, levels)
        (vector,) = self._unpack(norms, floats, levels)
        return vector

    def _unpacked(self, norms: Tensor, floats: Tensor, levels: Tensor) -> list[Tensor]:
        raised = levels if self._planes is None else self._planes.unpack(levels)
        steps = quotient(norms.double(), self.codec.levels).index_select(0, self._bucket_of)
        values = (raised.to(torch.int32) - self.codec.levels).double() * steps
        return [torch.cat([values.float(), floats]).index_select(0, self._sources)]
