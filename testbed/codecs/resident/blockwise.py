"""Ternary vectors with a scale for every block that stay on the device: `testbed.codecs.blockwise`.

A block's digits lie in a message as those of a layer of so many elements do, so that the twin is that of
`testbed.codecs.ternary` with blocks in the place of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.chunked import chunks
from testbed.codecs.kernels.blockwise import BLOCK
from testbed.codecs.resident.base import Rows
from testbed.codecs.resident.ternary import ThresholdTernaryResident
from testbed.gpu.graphs import Pass
from testbed.layout import Layout


class BlockThresholdTernaryResident(ThresholdTernaryResident):
    """Deterministic ternary on the scale of each block, with error feedback in the same pass."""

    def __init__(self, codec: BlockThresholdTernary, device: torch.device) -> None:
        blocks = list(chunks(Layout(codec.ternary), lambda layer: BLOCK))
        super().__init__(codec, device, blocks, Rows(blocks, BLOCK, codec.layout.size, device))
        self._fed_back = Pass(self._packed_with_feedback, self.layout.size)

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:  # type: ignore[override]
        """See `BlockThresholdTernary.encode`."""
        return self.encode_with_feedback(vector, torch.zeros_like(vector))

    def encode_with_feedback(self, vector: Tensor, residual: Tensor, key: Key | None = None) -> list[Tensor]:
        """Encode vector + residual; `residual` [layout.size], on the device, becomes what the message leaves of it.

        Where the sum is not finite the residual is changed, too: the error is told later.
        """
        tops, left, *buffers = self._fed_back(self.checked(vector), self.checked(residual))
        self.doubts.note(tops)
        residual.copy_(left)
        return buffers

    def _packed_with_feedback(self, x: Tensor, rest: Tensor) -> list[Tensor]:
        total = rest + x
        tops, *buffers = self._plain(total)
        (sent,) = self._unpacked(*buffers)
        return [tops, total - sent, *buffers]
