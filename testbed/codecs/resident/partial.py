"""Some layers coded on the device by any codec, the others as they are: `testbed.codecs.partial`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.partial import Partial
from testbed.codecs.resident import base
from testbed.codecs.resident.base import Blocks, Resident, extended
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass


class PartialResident(Resident):
    """The chosen layers' message with the others' floats behind it.

    Parameters
    ----------
    part : codes the chosen layers: `codec.codec` in its place
    """

    codec: Partial

    def __init__(self, codec: Partial, part: Any, device: torch.device) -> None:
        layers, others, size = codec.selection.coded, codec.selection.floats, codec.layout.size
        super().__init__(codec, device, others)
        self.cost, self._part = codec.cost, part
        self._others = Blocks(others, size, device)
        order, floats = base.elements_of(layers), base.elements_of(others)
        self._order, self._floats = self.moved(order), self.moved(floats)
        self._sources = self.moved(base.sources(order, floats, size))
        self._cut, self._join = (Pass(work, size) for work in (self._parted, self._joined))

    def start(self) -> Any:
        """See `Partial.start`."""
        return self.codec.start()

    def encode(self, vector: Tensor, key: Key, memory: Any) -> list[Tensor]:
        """See `Partial.encode`."""
        tops, part, floats = self._cut(self.checked(vector))
        self.doubts.note(tops)
        return [*self._part.encode(part, key, memory), floats]

    def _parted(self, x: Tensor) -> list[Tensor]:
        return [self._others.peaks(extended(x)), x.index_select(0, self._order), x.index_select(0, self._floats)]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        if not buffers:
            raise CodecError("a message without buffers has no float layers")
        *others, floats = buffers
        (vector,) = self._join(self._part.decode(others), floats)
        return vector

    def _joined(self, part: Tensor, floats: Tensor) -> list[Tensor]:
        return [torch.cat([part, floats]).index_select(0, self._sources)]
