"""E3M0 vectors that stay on the device: `testbed.codecs.e3m0`, in one pass over all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.device.e3m0 import PAIRS, codes_of
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.resident.base import Measures, Resident, extended
from testbed.gpu.graphs import Pass


class E3M0Resident(Resident):
    """Powers of two below each layer's largest magnitude; that this is finite is looked at later."""

    codec: E3M0

    def __init__(self, codec: E3M0, device: torch.device) -> None:
        layers = list(codec.layout)
        super().__init__(codec, device, layers)
        size = self.layout.size
        self._measures = Measures(layers, size, device)
        self._owner = self.moved(np.repeat(np.arange(len(layers)), [layer.size for layer in layers]))
        self._pairs = self.moved(PAIRS.numpy())
        self._pack, self._unpack = (Pass(work, size) for work in (self._packed, self._unpacked))

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """Round to the nearest; see `E3M0.encode`."""
        scales, codes = self._pack(self.checked(vector))
        self.doubts.note(scales)
        return [scales, codes]

    def _packed(self, x: Tensor) -> list[Tensor]:
        scales = self._measures.tops(x)
        units = torch.where(scales > 0, scales, 1.0)  # a layer of zeros has zeros for codes
        codes = codes_of(x, units.index_select(0, self._owner))
        pairs = extended(codes)[: 2 * ((len(x) + 1) // 2)].view(-1, 2)
        return [scales, pairs[:, 0] | pairs[:, 1] << 4]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        (vector,) = self._unpack(*buffers)
        return vector

    def _unpacked(self, scales: Tensor, codes: Tensor) -> list[Tensor]:
        values = self._pairs.index_select(0, codes.to(torch.int32)).view(-1)[: self.layout.size]
        return [values * scales.index_select(0, self._owner)]
