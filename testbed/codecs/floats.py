"""Float32: the vector as it is. The baseline's codec (weightgrad, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs import kernels, lanes
from testbed.codecs.base import (
    Buffers,
    Key,
    WireBuffers,
    elements,
    expect,
    require_finite,
    room,
    to_host,
    wire_array,
    write,
)
from testbed.codecs.threads import in_chunks
from testbed.layout import Layout


class Float32:
    """One buffer: the parameters in the order of the layout, little-endian float32.

    Parameters
    ----------
    layout : the model
    """

    def __init__(self, layout: Layout) -> None:
        lanes.warm_up()
        self.layout = layout
        self.nbytes = 4 * layout.size

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Copy the vector; CodecError names the layer that holds NaN or infinity. No random numbers are drawn."""
        given = elements(vector, self.layout)
        x = to_host(given)
        largest = in_chunks(lambda start, stop: kernels.largest_bits(x[start:stop]), x.size)
        if max(largest, default=0) >= kernels.INFINITY_BITS:
            require_finite(x, self.layout)
        return [x.copy() if x is given else x]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the message's values; see `Codec.decode`."""
        expect(buffers, ["parameters"])
        values = wire_array(buffers[0], np.float32, self.layout.size, "parameters")
        vector, y = room(out, self.layout)
        write(values, y)
        return vector
