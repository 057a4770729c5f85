"""Float32: the vector as it is. The baseline's codec (weightgrad, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    Key,
    VectorCodec,
    WireBuffers,
    elements,
    expect,
    require_finite,
    room,
    wire_array,
)
from testbed.codecs.registry import codec


@codec("float32")
class Float32(VectorCodec):
    """One buffer: the parameters in the order of the layout, little-endian float32.

    Parameters
    ----------
    layout : the model
    """

    costs_as = "float32"

    @property
    def nbytes(self) -> int:
        """Exact bytes of a message."""
        return 4 * self.layout.size

    def sizes(self) -> Sequence[int]:
        return [self.nbytes]

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Copy the vector; CodecError names the layer that holds NaN or infinity. No random numbers are drawn."""
        x = elements(vector, self.layout)
        require_finite(x, self.layout)
        values = self._pool.take(self.layout.size, np.float32)
        values[:] = backend.of(x).vectors.host(x)
        return [values]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the message's values; see `Codec.decode`."""
        expect(buffers, ["parameters"])
        values = wire_array(buffers[0], np.float32, self.layout.size, "parameters")
        vector, y = room(out, self.layout)
        backend.of(y).vectors.write(values, y)
        return vector
