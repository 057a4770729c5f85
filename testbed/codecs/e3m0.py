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

from testbed.codecs.base import Buffers, Key, VectorCodec, WireBuffers, expect, room, wire_array
from testbed.codecs.registry import codec
from testbed.codecs.sparse import finite
from testbed.errors import CodecError

TOP = 7  # the code of M
POWERS = [0.0, *(2.0 ** (code - TOP) for code in range(1, TOP + 1))]
_VALUES = torch.tensor([*POWERS, *(-power for power in POWERS)])  # what codes stand for
PAIRS = torch.stack([_VALUES.repeat(16), _VALUES.repeat_interleave(16)], 1)  # and bytes


@codec("E3M0")
class E3M0(VectorCodec):
    """Powers of two below each layer's largest magnitude.

    Parameters
    ----------
    layout : the model
    """

    costs_as = "E3M0"

    def sizes(self) -> Sequence[int]:
        return [4 * len(self.layout), -(-self.layout.size // 2)]

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Round to the nearest; no random numbers are drawn. CodecError names the layer that holds NaN or infinity."""
        finite(vector, self.layout)
        x, scales = vector.detach(), np.zeros(len(self.layout), np.float32)
        codes = torch.zeros(self.layout.size + self.layout.size % 2, dtype=torch.uint8, device=x.device)
        for number, layer in enumerate(self.layout):
            part = x[layer.slice]
            scales[number] = float(part.abs().max()) if layer.size else 0.0
            if scales[number] > 0:
                codes[layer.slice] = codes_of(part, float(scales[number]))
        pairs = codes.view(-1, 2)
        return [scales, (pairs[:, 0] | pairs[:, 1] << 4).cpu().numpy()]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write what each code stands for; see `Codec.decode`."""
        expect(buffers, ["scales", "codes"])
        scales = wire_array(buffers[0], np.float32, len(self.layout), "scales")
        bad = ~(np.isfinite(scales) & (scales >= 0))
        if bad.any():
            number = int(bad.argmax())
            name = self.layout.layers[number].name
            raise CodecError(f"layer {name}: a scale is finite and at least 0, found {scales[number]}")
        packed = wire_array(buffers[1], np.uint8, -(-self.layout.size // 2), "codes")
        vector, _ = room(out, self.layout)
        on = vector.device
        both = PAIRS.to(on).index_select(0, torch.from_numpy(packed.astype(np.int32)).to(on))
        vector.copy_(both.flatten()[: self.layout.size])
        for layer, scale in zip(self.layout, scales.tolist(), strict=True):
            vector[layer.slice] *= scale
        return vector


def codes_of(part: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Codes (uint8 [n]) on one scale above 0, or on each element's own.

    What is at least 1.5 * 2^k goes up, since times 4 / 3 it has the next exponent.
    """
    ratio = part.abs().div_(scale)
    smallest = ratio >= 2.0**-TOP
    exponent = (ratio.mul_(4 / 3).view(torch.int32) >> 23).sub_(127 - TOP)
    return exponent.clamp_(0, TOP).to(torch.uint8).max(smallest.to(torch.uint8)).bitwise_or_((part < 0).byte() << 3)
