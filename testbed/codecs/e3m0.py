"""Four bits an element: a sign and three bits of exponent, no fraction (E3M0).

What Streaming DiLoCo sends outer gradients as (arXiv 2501.18512, section 3.3). The paper does not say how values come
into its range of seven powers of two; here the largest magnitude M of a layer is the top one:

    0, +-M 2^-6, +-M 2^-5, ..., +-M 2^-1, +-M

and an element becomes the nearest of them, halfway up, so that below M 2^-7 it is 0 and elsewhere the error is at most
a third of it, up to one half below M 2^-6. A message has two buffers; numbers are little-endian:

1. scales: float32, M of each layer;
2. codes: 4 bits an element, the first of two in the lower half of a byte: the exponent, 0 for zero, 1 for M 2^-6 up to
   7 for M, and 8 on top of it where the element is negative. After an odd number of elements the upper half is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Key, VectorCodec, WireBuffers, elements, expect, room, wire_array
from testbed.codecs.kernels.vectors import INFINITY_BITS
from testbed.codecs.registry import codec
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layout


@codec("E3M0")
class E3M0(VectorCodec):
    """Powers of two below each layer's largest magnitude.

    Parameters
    ----------
    layout : the model
    """

    costs_as = "E3M0"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._ends = np.array([layer.end for layer in layout], np.int64)

    def sizes(self) -> Sequence[int]:
        return [4 * len(self.layout), -(-self.layout.size // 2)]

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Round to the nearest; no random numbers are drawn. CodecError names the layer that holds NaN or infinity."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        largest = np.array([on.vectors.largest_bits(x[layer.slice]) for layer in self.layout], np.uint32)
        beyond = largest >= INFINITY_BITS
        if beyond.any():
            raise NotFinite.of(f"layer {self._name(beyond)}")
        scales, codes = largest.view(np.float32), self._pool.take(-(-self.layout.size // 2))
        on.e3m0.pack(x, codes, scales, self._ends)
        return [scales, codes]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write what each code stands for; see `Codec.decode`."""
        expect(buffers, ["scales", "codes"])
        scales = wire_array(buffers[0], np.float32, len(self.layout), "scales")
        bad = ~(np.isfinite(scales) & (scales >= 0))
        if bad.any():
            raise CodecError(
                f"layer {self._name(bad)}: a scale is finite and at least 0, found {scales[int(bad.argmax())]}"
            )
        codes = wire_array(buffers[1], np.uint8, -(-self.layout.size // 2), "codes")
        vector, y = room(out, self.layout)
        backend.of(y).e3m0.unpack(codes, y, scales, self._ends)
        return vector

    def _name(self, of: np.ndarray) -> str:
        """Of the first layer of which this is true."""
        return self.layout.layers[int(of.argmax())].name
