"""Float32 vectors, and halves of them, that stay on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.floats import Float32
from testbed.codecs.half import _LARGEST_SHIFT, _OFFSET, _SMALLEST_SHIFT, _TOP, _TOP_HALF, Half
from testbed.codecs.resident.base import Blocks, Resident, extended
from testbed.gpu.graphs import Pass
from testbed.layout import Layer


class Float32Resident(Resident):
    """The vector as it is."""

    def __init__(self, codec: Float32, device: torch.device) -> None:
        whole = Layer("the vector", (codec.layout.size,), 0, False)
        super().__init__(codec, device, [whole])

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """A copy of the vector."""
        x = self.checked(vector).clone()
        self.doubts.keep(x)
        return [x]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        return buffers[0]

    def add(self, buffers: Sequence[Tensor], total: Tensor) -> None:
        """total += the message's vector."""
        total.add_(buffers[0])


class HalfResident(Resident):
    """Half precision, with a power of two for every layer."""

    def __init__(self, codec: Half, device: torch.device) -> None:
        layers = list(codec.layout)
        super().__init__(codec, device, layers)
        self._blocks = Blocks(layers, self.layout.size, device)
        sizes = [layer.size for layer in layers]
        self._owner = self.moved(np.repeat(np.arange(len(layers)), sizes))
        self._pack, self._unpack = (Pass(work, self.layout.size) for work in (self._packed, self._unpacked))

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """Scale and round; see `Half.encode`."""
        tops, shifts, halves = self._pack(self.checked(vector))
        self.doubts.note(tops)
        return [shifts, halves]

    def _packed(self, x: Tensor) -> list[Tensor]:
        tops = self._blocks.peaks(extended(x))
        exponents = torch.frexp(tops).exponent
        shifts = torch.where(tops > 0, (_TOP - exponents).clamp(_SMALLEST_SHIFT, _LARGEST_SHIFT), 0)
        limits = torch.where(shifts == _SMALLEST_SHIFT, float(_TOP_HALF), 2.0**_TOP)
        scaled = x * _power(shifts).index_select(0, self._owner)
        limit = limits.float().index_select(0, self._owner)
        halves = torch.minimum(torch.maximum(scaled, -limit), limit).half()
        return [tops, (shifts + _OFFSET).to(torch.uint8), halves.view(torch.uint8)]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        (vector,) = self._unpack(*buffers)
        return vector

    def _unpacked(self, shifts: Tensor, halves: Tensor) -> list[Tensor]:
        factors = _power(_OFFSET - shifts.to(torch.int32))
        return [halves.view(torch.float16).float() * factors.index_select(0, self._owner)]


def _power(exponents: Tensor) -> Tensor:
    """Two to these whole numbers of -126 .. 127 (float32), exactly."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)
