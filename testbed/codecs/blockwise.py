"""Ternary vectors with a scale for every 5,120 elements of a layer.

The format is that of `testbed.codecs.trits` with more scales: a float32 for every block of a layer's run (5 x 1,024
elements; the rest is a last block), 0.006 bit an element. A scale close by follows the values better than one for the
whole layer, so the error is smaller where magnitudes differ within a layer, and coding takes one pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Elements, Key, WireBuffers, beside, elements, room, stretches
from testbed.codecs.kernels.blockwise import BLOCK
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.registry import codec
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout


class BlockFormat(TritFormat):
    """Which blocks there are, and how they are decoded.

    Parameters
    ----------
    layout : the model
    float_biases, float_last : which layers stay in float32
    """

    def __init__(self, layout: Layout, float_biases: bool, float_last: bool) -> None:
        super().__init__(layout, lambda layer: (float_biases and layer.bias) or (float_last and layer.last))
        counts = [-(-layer.size // BLOCK) for layer in self.ternary]
        self.blocks = stretches(counts)
        self.nbytes += 4 * (sum(counts) - self.scale_count)
        self.scale_count = sum(counts)

    def scale_name(self, index: int) -> str:
        for layer, blocks in zip(self.ternary, self.blocks, strict=True):
            if index < blocks.stop:
                return f"layer {layer.name}, block {index - blocks.start}"
        raise IndexError(index)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write 0, +scale or -scale of its block for each digit, the float layers as they came; see `Codec.decode`."""
        parts = self.check(buffers)
        vector, y = room(out, self.layout)
        on = backend.of(y)
        self.selection.scatter(parts.floats, y)
        for layer, run, blocks in zip(self.ternary, self.runs, self.blocks, strict=True):
            on.blockwise.unpack(parts.trits[run], y[layer.slice], parts.scales[blocks])
        return vector

    def _encode(self, x: Elements, code: Callable[[int, Layer, np.ndarray, np.ndarray], bool]) -> Buffers:
        """A message whose trits and scales `code` writes for each layer; it says whether the layer was finite."""
        buffers = self.buffers(self._pool.take(self.scale_count, np.float32), x)
        for position, (layer, run, blocks) in enumerate(zip(self.ternary, self.runs, self.blocks, strict=True)):
            if not code(position, layer, buffers[2][run], buffers[0][blocks]):
                raise NotFinite.of(f"layer {layer.name}")
        return buffers


@codec("ternary, blockwise")
class BlockTernary(BlockFormat):
    """Stochastic ternary (terngrad, eq. 1 to 3) on the scale of each block; unbiased for the clipped vector.

    Parameters
    ----------
    layout : the model
    clip : c, in standard deviations of a block; None: no clipping
    float_last : keep the last layer in float32
    """

    costs_as = "ternary, blockwise"

    def __init__(self, layout: Layout, clip: float | None = 2.5, float_last: bool = True) -> None:
        super().__init__(layout, float_biases=False, float_last=float_last)
        if clip is not None and not clip > 0:
            raise CodecError(f"clip is a positive number of standard deviations or None, not {clip}")
        self._clip = np.float32(clip or 0.0)

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """Clip, ternarize at random and pack; CodecError names the layer that holds NaN or infinity."""
        x = elements(vector, self.layout)
        on = backend.of(x)

        def code(position: int, layer: Layer, trits: np.ndarray, scales: np.ndarray) -> bool:
            drawn = np.uint32(key.layer(self.indexes[position]))
            return on.blockwise.draw(x[layer.slice], trits, scales, self._clip, drawn)

        return self._encode(x, code)


class BlockThresholdTernary(BlockFormat):
    """Deterministic ternary on the scale of each block, with error feedback in the same pass.

    Delta = 0.7 * mean|x| of the block, alpha the mean of what is above it, as `ThresholdTernary` has them for a layer
    (weightgrad, section 4).

    Parameters
    ----------
    layout : the model
    float_biases, float_last : which layers stay in float32
    """

    costs_as = "threshold ternary, blockwise"

    def __init__(self, layout: Layout, float_biases: bool = True, float_last: bool = True) -> None:
        super().__init__(layout, float_biases, float_last)

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Ternarize and pack; no random numbers are drawn. CodecError names the layer that is not finite."""
        return self.encode_with_feedback(vector, self._pool.take_like(vector).zero_())

    def encode_with_feedback(self, vector: torch.Tensor, residual: torch.Tensor, key: Key | None = None) -> Buffers:
        """Encode vector + residual, and leave in `residual` what was not sent: zero for float layers.

        Raises
        ------
        CodecError : a layer is not finite; its residual, and those of layers after it, are then to be thrown away
        """
        x, rest = elements(vector, self.layout), beside(residual, vector, self.layout)
        on = backend.of(x)
        for layer in self.floats:
            residual[layer.slice] += vector[layer.slice]

        def code(position: int, layer: Layer, trits: np.ndarray, scales: np.ndarray) -> bool:
            return on.blockwise.feed_back(x[layer.slice], rest[layer.slice], trits, scales)

        buffers = self._encode(rest, code)
        for layer in self.floats:
            residual[layer.slice] = 0.0
        return buffers


@codec("ternary with feedback, blockwise")
def blockwise_with_feedback(layout: Layout) -> ErrorFeedback:
    """`BlockThresholdTernary` with the memory that it needs."""
    return ErrorFeedback(BlockThresholdTernary(layout))
