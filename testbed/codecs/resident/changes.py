"""The largest changes of a momentum that stays on the device: `testbed.codecs.changes`."""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.changes import Changes, Tracked
from testbed.codecs.resident.base import extended
from testbed.codecs.resident.sparse import Room
from testbed.codecs.resident.topk import LargestResident
from testbed.gpu.places import scattered


class ChangesResident(LargestResident):
    """EF21's; both vectors of its memory go to the device with the first message, and stay there."""

    codec: Changes

    def __init__(self, codec: Changes, device: torch.device) -> None:
        super().__init__(codec, device)
        self.cost, self.start = codec.cost, codec.start

    def encode(self, vector: Tensor, key: Key, memory: Tracked) -> list[Tensor]:
        """See `Changes.encode`; what is not finite goes into the memory, too: the error is told later."""
        kept, share = (self.codec.kept, 1 - self.codec.momentum) if memory.begun else (1.0, 1.0)
        wanted = self.wanted(kept)
        inputs = self.checked(vector), torch.from_numpy(wanted), memory.momentum, memory.estimate
        buffers, left = self.message(self._changed, *inputs, most=int(wanted.sum()), kept=kept, share=share)
        memory.momentum, memory.estimate = left
        memory.begun = True
        return buffers

    def _changed(
        self, room: Room, x: Tensor, wanted: Tensor, momentum: Tensor, estimate: Tensor, *, kept: float, share: float
    ) -> list[Tensor]:
        momentum = momentum.lerp(x, share)
        found = self.largest(room, momentum - estimate, wanted, kept)
        known = extended(estimate)
        told = known.index_select(0, found.places) + self.values.sent(found)
        return [*self.packed(room, found), momentum, scattered(known, found.places, told)[:-1]]
