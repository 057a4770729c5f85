"""Adaptive messages that are made on the device: `testbed.codecs.adaptive`, in one pass over all layers.

Steps and symbols are found there, and the CPU codes the symbols (`testbed.codecs.resident.streams`). The steps come of
a sum of squares in another order than the CPU's, and differ by less than 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.adaptive import LARGEST, SMALLEST, Adaptive
from testbed.codecs.base import Key
from testbed.codecs.device.planar import quotient
from testbed.codecs.kernels.adaptive import MIDDLE
from testbed.codecs.resident import streams
from testbed.codecs.resident.base import Blocks, Resident, extended
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass
from testbed.gpu.moves import upload


class AdaptiveResident(Resident):
    """Uniform quantization of all layers with one step; the mean square that it follows from stays on the device."""

    codec: Adaptive

    def __init__(self, codec: Adaptive, device: torch.device) -> None:
        layers, size = list(codec.layout), codec.layout.size
        super().__init__(codec, device, layers)
        self._blocks = Blocks(layers, size, device)
        self._owner = self.moved(np.repeat(np.arange(len(layers)), [layer.size for layer in layers]))
        works = self._quantized, self._quantized_with_feedback, self._unpacked
        self._pack, self._pack_with_feedback, self._unpack = (Pass(work, size) for work in works)

    def mean_square(self, vector: Tensor) -> Tensor:
        """Of a vector's elements (float64 scalar)."""
        norm = torch.linalg.vector_norm(self.checked(vector), dtype=torch.float64)
        return norm * norm / max(self.layout.size, 1)

    def reference(self, vector: Tensor, before: float | Tensor) -> Tensor:
        """See `Adaptive.reference`: whether there was one before, nobody looks at."""
        known = upload(torch.as_tensor(before, dtype=torch.float64), self.device)
        return torch.where(known > 0, known, self.mean_square(vector))

    def encode(self, vector: Tensor, key: Key | None = None, mean_square: Tensor | None = None) -> list[Tensor]:
        """Quantize and code; see `Adaptive.encode`."""
        x = self.checked(vector)
        tops, steps, symbols = self._pack(x, self.mean_square(x) if mean_square is None else mean_square)
        self.doubts.note(tops)
        return [steps, streams.coded(self.codec.runs, symbols)]

    def encode_with_feedback(
        self, vector: Tensor, residual: Tensor, key: Key | None = None, mean_square: Tensor | None = None
    ) -> list[Tensor]:
        """Encode vector + residual; `residual` [layout.size], on the device, becomes what the message leaves of it.

        Where the sum is not finite the residual is changed, too: the error is told later.
        """
        x, rest = self.checked(vector), self.checked(residual)
        if mean_square is None:
            mean_square = self.mean_square(x + rest)
        tops, steps, symbols, left = self._pack_with_feedback(x, rest, mean_square)
        self.doubts.note(tops)
        residual.copy_(left)
        return [steps, streams.coded(self.codec.runs, symbols)]

    def _quantized_with_feedback(self, x: Tensor, rest: Tensor, mean_square: Tensor) -> list[Tensor]:
        total = x + rest
        tops, steps, symbols = self._quantized(total, mean_square)
        return [tops, steps, symbols, total - self._values(steps, symbols)]

    def _quantized(self, x: Tensor, mean_square: Tensor) -> list[Tensor]:
        """The layers' largest magnitudes, and a message whose symbols are not coded."""
        tops = self._blocks.peaks(extended(x))
        steps, limits = self._steps(tops.double(), (mean_square * (12 * self.codec.error)).sqrt())
        wide = steps.double()
        inverse = torch.where(wide > 0, 1 / wide, 0.0).index_select(0, self._owner)
        limit = limits.index_select(0, self._owner)
        levels = (x.double() * inverse).round().minimum(limit).maximum(-limit)
        levels = levels.nan_to_num()  # what is no number is told later: until then it has a code
        return [tops, steps, (levels + MIDDLE).to(torch.uint8)]

    def _steps(self, tops: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """The layers' steps (float32) and how many of them their values are at most (float64); see the codec's."""
        steps = torch.maximum(shared, quotient(tops, MIDDLE)).clamp(SMALLEST, LARGEST).float()
        wide = steps.double()
        most = torch.div(torch.full_like(wide, LARGEST), wide, rounding_mode="floor").clamp(max=MIDDLE)
        limits = torch.minimum((tops / wide).round(), most)
        return torch.where(tops > 0, steps, 0.0), torch.where(tops > 0, limits, 0.0)

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        if len(buffers) != 2:
            raise CodecError(f"a message of 2 buffers (steps, levels) came as {len(buffers)}")
        steps, levels = buffers
        (vector,) = self._unpack(steps, streams.symbols_of(self.codec.runs, levels))
        return vector

    def _unpacked(self, steps: Tensor, symbols: Tensor) -> list[Tensor]:
        return [self._values(steps, symbols)]

    def _values(self, steps: Tensor, symbols: Tensor) -> Tensor:
        return ((symbols.double() - MIDDLE) * steps.double().index_select(0, self._owner)).float()
