"""The largest of every chunk of a vector that stays on the device: `testbed.codecs.chunked` and `.dct`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.dct import Decoupled, Frequencies
from testbed.codecs.resident.sparse import Room
from testbed.codecs.resident.topk import LargestResident
from testbed.gpu.places import scattered


class ChunkedResident(LargestResident):
    """The largest magnitudes of every chunk; each chunk is a layer of `codec`, which is the twin's own."""

    def __init__(self, codec: ChunkedTopK, device: torch.device) -> None:
        super().__init__(codec.sparse, device)
        self.costs_as, self.chunked = codec.costs_as, codec
        wanted = self.wanted(codec.kept)
        self.most, self.each = int(wanted.sum()), self.moved(wanted)

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """See `ChunkedTopK.encode`."""
        buffers, _ = self.message(self._packed_largest, self.checked(vector), self.each, most=self.most)
        return buffers

    def wanted(self, kept: float) -> np.ndarray:
        return np.array([self.chunked.wanted(chunk.size) for chunk in self.layout], np.int64)

    def _packed_largest(self, room: Room, x: Tensor, wanted: Tensor) -> list[Tensor]:
        return self.packed(room, self.largest(room, x, wanted, self.chunked.kept))

    def _least(self, bits: Tensor, kept: float) -> Tensor:
        """Of chunks of one length that lie one after the other at once."""
        found = [
            bits[start:stop].view(-1, size).topk(self.chunked.wanted(size), sorted=False).values.amin(1)
            for start, stop, size in self.chunked.runs
        ]
        return torch.cat([bits.new_empty(0), *found]).clamp(min=1)


class FrequenciesResident(ChunkedResident):
    """The largest coefficients of each block; the momentum goes to the device with the first vector, and stays there.

    A transform is products of matrices, whose sums another device takes in another order: coefficients, and what is
    left of the momentum, differ by less than 1e-5 of a block's largest. Of two that are as close to each other it may
    keep another one; the momentum then keeps what the CPU's has sent, and the other way round.
    """

    def __init__(self, codec: Frequencies, device: torch.device) -> None:
        super().__init__(codec.largest, device)
        self.cost = codec.cost
        self._blocks, self._beta, self.start = codec.blocks, codec.beta, codec.start

    def encode(self, vector: Tensor, key: Key, memory: Decoupled) -> list[Tensor]:  # type: ignore[override]
        """See `Frequencies.encode`; what is not finite goes into the memory, too: the error is told later."""
        inputs = self.checked(vector), self.each, memory.momentum
        buffers, (memory.momentum,) = self.message(self._decoupled, *inputs, most=self.most)
        return buffers

    def _decoupled(self, room: Room, x: Tensor, wanted: Tensor, momentum: Tensor) -> list[Tensor]:
        momentum = momentum * self._beta + x
        found = self.largest(room, self._blocks.forward(momentum), wanted, self.chunked.kept)
        sent = scattered(x.new_zeros(len(x) + 1), found.places, found.values)[:-1]
        return [*self.packed(room, found), momentum - self._blocks.inverse(sent)]
