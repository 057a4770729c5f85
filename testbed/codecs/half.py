"""Half precision: IEEE 754 binary16 with a power of two for every layer, so that nothing overflows.

A plain half ends at 65,504, where a diverging gradient would become infinity at the receiver, and loses digits below
6.1e-5, where most gradients lie late in a training. Here a layer is first multiplied by the power of two that brings
its largest magnitude into [2^14, 2^15), which is exact, as loss scaling does for a whole model (Micikevicius et al.,
"Mixed Precision Training", ICLR 2018). For a layer whose largest magnitude is M, the error of an element x is at most

    max(2^-11 |x|, 2^-39 M)

A message has two buffers; numbers are little-endian:

1. shifts: one byte a layer, the exponent of the power of two plus 128;
2. halves: the layers in their order, two bytes an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Key, VectorCodec, WireBuffers, elements, expect, room, wire_array
from testbed.codecs.kernels.vectors import INFINITY_BITS
from testbed.codecs.registry import codec
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer

_TOP = 15  # magnitudes end below 2^15: rounding up cannot reach a half's infinity
_TOP_HALF = np.float32(2.0**_TOP * (1 - 2.0**-11))  # the largest half below
_OFFSET = 128
_SMALLEST_SHIFT = _TOP - 128  # of a layer that reaches the end of float32, 2^128
_LARGEST_SHIFT = 126  # its inverse is still a normal float32


@codec("float16")
class Half(VectorCodec):
    """float16 with layer-wise scaling; see the module for the error.

    Parameters
    ----------
    layout : the model
    """

    costs_as = "float16"

    @property
    def nbytes(self) -> int:
        """Exact bytes of a message."""
        return len(self.layout) + 2 * self.layout.size

    def sizes(self) -> Sequence[int]:
        return [len(self.layout), 2 * self.layout.size]

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Scale and round to nearest, ties to even; CodecError names the layer that holds NaN or infinity."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        shifts = [_shift(layer, on.vectors.largest_bits(x[layer.slice])) for layer in self.layout]
        halves = self._pool.take(self.layout.size, np.uint16)
        for layer, shift in zip(self.layout, shifts, strict=True):
            # Where 2^15 stands for the end of float32, rounding up to it would be infinity; elsewhere no limit is met.
            limit = _TOP_HALF if shift == _SMALLEST_SHIFT else np.float32(2.0**_TOP)
            on.half.pack(x[layer.slice], halves[layer.slice], np.float32(2.0**shift), limit)
        return [np.array([shift + _OFFSET for shift in shifts], np.uint8), halves.view(np.uint8)]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Widen and scale back; see `Codec.decode`."""
        expect(buffers, ["shifts", "halves"])
        shifts = wire_array(buffers[0], np.uint8, len(self.layout), "shifts").astype(int) - _OFFSET
        halves = wire_array(buffers[1], np.uint16, self.layout.size, "halves")
        for layer, shift in zip(self.layout, shifts, strict=True):
            if not _SMALLEST_SHIFT <= shift <= _LARGEST_SHIFT:
                raise CodecError(
                    f"layer {layer.name}: a shift of {shift} is not in {_SMALLEST_SHIFT} .. {_LARGEST_SHIFT}"
                )
        vector, y = room(out, self.layout)
        on = backend.of(y)
        for layer, shift in zip(self.layout, shifts, strict=True):
            largest = on.half.unpack(halves[layer.slice], y[layer.slice], np.float32(2.0**-shift))
            if largest >= INFINITY_BITS:
                raise CodecError(f"layer {layer.name}: NaN or infinity among the halves of a message")
        return vector


def _shift(layer: Layer, largest: int) -> int:
    """The exponent of the power of two that a layer is multiplied by; `largest` are its largest magnitude's bits."""
    if largest >= INFINITY_BITS:
        raise NotFinite.of(f"layer {layer.name}")
    _, exponent = math.frexp(np.uint32(largest).view(np.float32))
    return min(_TOP - exponent, _LARGEST_SHIFT) if largest else 0
