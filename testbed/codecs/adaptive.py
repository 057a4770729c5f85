"""Adaptive: bits that follow from the gradient's own statistics each step, entropy coded.

Øland and Raj, "Reducing communication overhead in distributed learning by an order of magnitude (almost)", ICASSP 2015,
quantize uniformly, code the levels with an entropy coder, and spend more bits where the gradient's norm is larger,
since a small error there does more (as MQGrad, section 1, describes it). The rule here:

- all layers share one step, sqrt(12 * error) times a root mean square: rounding to multiples of a step has the mean
  square step^2 / 12, so the error's mean square is at most about `error` times that. With `AdaptiveToNorm` it is that
  of the sender's first vector: as long as the gradients' norm is large they take more bits, and fewer as it falls.
  `Adaptive` by itself knows one vector and takes its own;
- a layer's bits are then log2(2 * largest / step + 1): a layer whose values are twice as large gets one bit more, and
  one all of whose values are below half a step gets none. One step for all is what makes the total error smallest
  for the bits spent (reverse water-filling; Cover and Thomas, Elements of Information Theory, 10.3.3);
- 8 bits at most: where a layer's largest value is beyond 127 steps, its own step is a 127th of it;
- the entropy coder brings a layer's bits down to what the distribution of its levels is worth.

A message has two buffers: the layers' steps as little-endian float32, and their levels, each raised by 127, as
runs of symbols (`testbed.codecs.lossless.entropy`), a run a layer. A vector on a GPU is quantized there, and its
symbols, a byte each, are coded and decoded on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    Elements,
    Key,
    VectorCodec,
    WireBuffers,
    beside,
    elements,
    expect,
    room,
    wire_array,
)
from testbed.codecs.costs import cost_of, cost_with_feedback
from testbed.codecs.kernels.adaptive import MIDDLE, SYMBOLS
from testbed.codecs.kernels.vectors import INFINITY_BITS
from testbed.codecs.lossless.entropy import SymbolRuns
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

MAX_ERROR = 0.25
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-149  # float32 above zero


class Adaptive(VectorCodec):
    """Uniform mid-tread quantization of all layers with a step of the vector's own, entropy coded.

    Parameters
    ----------
    layout : the model
    error : mean square of the quantization error, as a fraction of the vector's mean square; up to 0.25, above which
        even the root mean square is less than half a step
    """

    costs_as = "adaptive"

    def __init__(self, layout: Layout, error: float = 0.05) -> None:
        if not 0 < error <= MAX_ERROR:
            raise CodecError(f"error is a fraction of the gradient's mean square, 0 to {MAX_ERROR}, not {error}")
        super().__init__(layout)
        self.error = error
        self.runs = SymbolRuns(SYMBOLS, [f"layer {layer.name}" for layer in layout], [layer.size for layer in layout])

    def encode(self, vector: torch.Tensor, key: Key | None = None, mean_square: float | None = None) -> Buffers:
        """Quantize and code; no random numbers are drawn. CodecError names the layer that holds NaN or infinity.

        `mean_square` is what the error is a fraction of, by default the vector's own.
        """
        return self._encode(elements(vector, self.layout), None, mean_square)

    def encode_with_feedback(
        self,
        vector: torch.Tensor,
        residual: torch.Tensor,
        key: Key | None = None,
        mean_square: float | None = None,
    ) -> Buffers:
        """Encode vector + residual; `residual` [layout.size] becomes what the message leaves of it.

        Raises
        ------
        CodecError : NaN or infinity in a layer of the sum; the residual is as it was
        """
        elements(vector, self.layout)  # checks its shape
        rest = beside(residual, vector, self.layout)
        total = torch.add(vector.detach(), residual, out=self._pool.take_like(vector))
        return self._encode(elements(total, self.layout), rest, mean_square)

    def mean_square(self, vector: torch.Tensor) -> float:
        """Of a vector's elements; CodecError as for `encode`."""
        x = elements(vector, self.layout)
        return self._squares(x)[0] / max(len(x), 1)

    def reference(self, vector: torch.Tensor, before: float | torch.Tensor) -> float:
        """What a sender's errors are fractions of: the mean square `before`, of this vector where that is 0."""
        return float(before) or self.mean_square(vector)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write each level times its layer's step; see `Codec.decode`."""
        expect(buffers, ["steps", "levels"])
        steps = wire_array(buffers[0], np.float32, len(self.layout), "steps")
        symbols = self.runs.unpack(buffers[1])
        for layer, step in zip(self.layout, steps.tolist(), strict=True):
            top = MIDDLE
            if LARGEST / MIDDLE < step <= LARGEST:  # then it is to be seen
                part = symbols[layer.slice]
                top = max(MIDDLE - int(part.min(initial=MIDDLE)), int(part.max(initial=MIDDLE)) - MIDDLE)
            if not 0 <= step <= LARGEST or step * top > LARGEST:
                raise CodecError(f"layer {layer.name}: {top} steps of {step} are no finite value")
        vector, y = room(out, self.layout)
        on = backend.of(y)
        for layer, step in zip(self.layout, steps.tolist(), strict=True):
            on.adaptive.reconstruct(symbols[layer.slice], y[layer.slice], step)
        return vector

    def _squares(self, x: Elements) -> tuple[float, list[float]]:
        """The sum of all squares, and each layer's largest magnitude."""
        on = backend.of(x)
        measured = [_checked(layer, *on.vectors.moments(x[layer.slice])[1:]) for layer in self.layout]
        return sum(square for square, _ in measured), [largest for _, largest in measured]

    def _encode(self, x: Elements, rest: Elements | None, mean_square: float | None) -> Buffers:
        on = backend.of(x)
        squares, magnitudes = self._squares(x)
        shared = math.sqrt(12 * self.error * (squares / max(len(x), 1) if mean_square is None else mean_square))
        steps = np.empty(len(self.layout), np.float32)
        symbols = self._pool.take(len(x))
        for index, (layer, largest) in enumerate(zip(self.layout, magnitudes, strict=True)):
            steps[index], top = _step(shared, largest)
            here = None if rest is None else rest[layer.slice]
            on.adaptive.quantize(x[layer.slice], symbols[layer.slice], here, float(steps[index]), top)
        return [steps, self.runs.pack(symbols)]


@dataclass
class Seen:
    """The mean square of the first vector that was not all zeros, and what messages have left out, with feedback.

    On a device the mean square is a number there.
    """

    mean_square: float | torch.Tensor
    residual: torch.Tensor | None


class AdaptiveToNorm:
    """Adaptive quantization whose error is a fraction of the sender's first vector's mean square.

    Parameters
    ----------
    codec : quantizes
    feedback : a sender adds what its messages have left out so far to the next one
    """

    def __init__(self, codec: Adaptive, feedback: bool) -> None:
        self.codec, self.feedback = codec, feedback
        self.layout = codec.layout
        self.decode = codec.decode
        self.cost = cost_with_feedback(codec) if feedback else cost_of(codec)

    def around(self, codec: Any) -> AdaptiveToNorm:
        """See `testbed.codecs.memory.Around`."""
        return AdaptiveToNorm(codec, self.feedback)

    def start(self) -> Seen:
        """Nothing seen."""
        return Seen(0.0, torch.zeros(self.layout.size) if self.feedback else None)

    def encode(self, vector: torch.Tensor, key: Key, memory: Seen) -> Buffers:
        """See `Remembering.encode`; an error in the vector leaves the memory as it was."""
        mean_square = self.codec.reference(vector, memory.mean_square)
        if memory.residual is None:
            buffers = self.codec.encode(vector, key, mean_square)
        else:
            memory.residual = memory.residual.to(vector.device)
            buffers = self.codec.encode_with_feedback(vector, memory.residual, key, mean_square)
        memory.mean_square = mean_square
        return buffers


def _checked(layer: Layer, squares: float, largest: int) -> tuple[float, float]:
    """(sum of squares, largest magnitude) of a layer, of the latter's bits."""
    if largest >= INFINITY_BITS:
        raise NotFinite.of(f"layer {layer.name}")
    return squares, float(np.uint32(largest).view(np.float32))


def _step(shared: float, largest: float) -> tuple[np.float32, float]:
    """A layer's step and how many of them its largest value is, within float32's range."""
    if largest == 0:
        return np.float32(0), 0
    step = np.float32(min(max(shared, largest / MIDDLE, SMALLEST), LARGEST))
    return step, min(np.rint(largest / float(step)), MIDDLE, LARGEST // float(step))
