"""The largest magnitudes of a vector that stays on the device: `testbed.codecs.topk` and `testbed.codecs.dgc`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.device.planar import quotient
from testbed.codecs.device.sparse import magnitudes
from testbed.codecs.dgc import DGC, DGCMemory
from testbed.codecs.resident.base import extended
from testbed.codecs.resident.sparse import Room, SparseCodecResident
from testbed.codecs.resident.values import Kept
from testbed.codecs.sparse import SparseCodec
from testbed.codecs.topk import TopK
from testbed.gpu.places import running, scattered


class LargestResident(SparseCodecResident):
    """Keeps the largest magnitudes of every layer, as many as `Largest.wanted` says."""

    codec: Any

    def __init__(self, codec: SparseCodec, device: torch.device) -> None:
        super().__init__(codec, device)
        sizes = np.array([layer.size for layer in self.layout], np.int64)
        self.layer_sizes, self._owner = self.moved(sizes), self.moved(np.repeat(np.arange(sizes.size), sizes))

    def wanted(self, kept: float) -> np.ndarray:
        """How many elements each layer keeps at most (int64 [layers])."""
        return np.array([self.codec.largest.wanted(layer, kept) for layer in self.layout], np.int64)

    def largest(self, room: Room, x: Tensor, wanted: Tensor, kept: float) -> Kept:
        """The largest of a vector, of equal magnitudes the first, never zeros; see `Largest.places`.

        Parameters
        ----------
        wanted : those of this fraction `kept`, on the device
        """
        bits = magnitudes(x)
        least = self._least(bits, kept)
        each = least.index_select(0, self._owner)
        above, equal = bits > each, bits == each
        ranks = running(torch.stack([above, equal]))
        more, before = self.before(ranks).unbind()
        last = (before[:-1] + wanted - more.diff()).index_select(0, self._owner)  # of equal ones
        return self.kept(room, x, above | (equal & (ranks[1] <= last)))

    def _least(self, bits: Tensor, kept: float) -> Tensor:
        """The smallest magnitude that each layer keeps (bits, int32 [layers])."""
        not_zero = bits.new_ones(())
        found = [
            torch.topk(bits[layer.slice], int(count), sorted=False).values.amin() if count < layer.size else not_zero
            for layer, count in zip(self.layout, self.wanted(kept), strict=True)
        ]
        return torch.stack(found).clamp(min=1)


class TopKResident(LargestResident):
    """The largest magnitudes of every layer."""

    codec: TopK

    def encode(self, vector: Tensor, key: Key | None = None, kept: float | None = None) -> list[Tensor]:
        """See `TopK.encode`."""
        kept = self.codec.kept if kept is None else kept
        wanted = self.wanted(kept)
        inputs = self.checked(vector), torch.from_numpy(wanted)
        buffers, _ = self.message(self._largest, *inputs, most=int(wanted.sum()), kept=kept)
        return buffers

    def _largest(self, room: Room, x: Tensor, wanted: Tensor, kept: float) -> list[Tensor]:
        return self.packed(room, self.largest(room, x, wanted, kept))


class DGCResident(LargestResident):
    """Deep Gradient Compression; its memory goes to the device with the first vector, and stays there."""

    codec: DGC

    def start(self) -> DGCMemory:
        """See `DGC.start`."""
        return self.codec.start()

    def encode(self, vector: Tensor, key: Key, memory: DGCMemory) -> list[Tensor]:
        """See `DGC.encode`; what is not finite goes into the memory, too: the error is told later."""
        kept = self.codec.kept_at(key.step)
        wanted = self.wanted(kept)
        remembered = [memory.total, memory.velocity] if self.codec.momentum else [memory.total]
        inputs = self.checked(vector), torch.from_numpy(wanted), *remembered
        buffers, left = self.message(self._accumulated, *inputs, most=int(wanted.sum()), kept=kept)
        memory.total, memory.velocity = left if self.codec.momentum else (*left, memory.velocity.to(self.device))
        return buffers

    def _accumulated(
        self, room: Room, x: Tensor, wanted: Tensor, total: Tensor, velocity: Tensor | None = None, *, kept: float
    ) -> list[Tensor]:
        total, velocity = self._added(self._clipped(x), total, velocity)
        found = self.largest(room, total, wanted, kept)
        sent = replace(found, values=self.values.sent(found))
        left = [scattered(extended(total), found.places, found.values - sent.values)[:-1]]
        if velocity is not None:
            left.append(self._masked(velocity, found, wanted) if self.codec.masking else velocity)
        return [*self.packed(room, found), *left]

    def _added(self, gradient: Tensor, total: Tensor, velocity: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See `kernels.dgc.accumulate_chunk`."""
        if velocity is None:
            return total + gradient, None
        momentum = float(np.float32(self.codec.momentum))
        velocity = velocity * momentum + gradient
        return total + (gradient + velocity * momentum if self.codec.nesterov else velocity), velocity

    def _clipped(self, x: Tensor) -> Tensor:
        if self.codec.clip_norm is None:
            return x
        norm = torch.linalg.vector_norm(x, dtype=torch.float64)
        factor = quotient(self.codec.clip_norm, norm).clamp(max=1)  # of a norm of zero 1
        return x * factor.nan_to_num(1.0).float()  # what is no number is told of its own layer

    def _masked(self, velocity: Tensor, found: Kept, wanted: Tensor) -> Tensor:
        """Zero where something is sent of a layer that holds something back (momentum factor masking, 3.3)."""
        holds = torch.cat([wanted < self.layer_sizes, wanted.new_zeros(1, dtype=torch.bool)])
        places = torch.where(holds.index_select(0, found.sections.owner), found.places, self.layout.size)
        return scattered(extended(velocity), places, 0.0)[:-1]
