"""Every element as one of a few means of its layer, in 2, 4 or 8 bits.

What MuLoCo sends outer gradients as (arXiv 2505.23725; "statistical" and "row-wise statistical" in its authors' code,
with ranges of six standard deviations): bins of one width lie around a layer's mean, what is beyond them is in the
outermost, and an element stands for the mean of all that are in its bin. So each layer's sum stays as it was, and the
error is never larger than the elements' deviation from their mean. The rule stands in `testbed.codecs.chunked`.

A message has two buffers; numbers are little-endian:

1. means: 2^bits float32 for each layer, or for each row of a matrix, 0 for a bin that is empty;
2. bins: the bits of each element, the first in the lowest bits of a byte; bits past the last element are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Key, VectorCodec, WireBuffers, all_finite, expect, room
from testbed.codecs.chunked import Bins
from testbed.codecs.registry import codec
from testbed.codecs.sparse import finite
from testbed.errors import CodecError
from testbed.layout import Layout


class Statistical(VectorCodec):
    """Means of bins.

    Parameters
    ----------
    layout : the model
    bits : of an element
    rows : whether each row of a matrix [out, ...] has bins of its own, where else a layer has

    Attributes
    ----------
    counts : elements that share bins, int64 [layers or rows]
    """

    costs_as = "statistical"

    def __init__(self, layout: Layout, bits: Literal[2, 4, 8] = 2, rows: bool = False) -> None:
        super().__init__(layout)
        runs = [layer.shape[0] if rows and not layer.bias and layer.size else 1 for layer in layout]
        self.counts = np.array(
            [layer.size // count for layer, count in zip(layout, runs, strict=True) for _ in range(count)], np.int64
        )
        self.bins = Bins([1] * self.counts.size, bits)

    def sizes(self) -> Sequence[int]:
        return self.bins.sizes(self.layout.size)

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = finite(vector, self.layout)
        return self.bins.encode(backend.of(x).vectors.host(x), self.counts, self._pool.take)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write what each bin stands for; see `Codec.decode`."""
        expect(buffers, self.bins.names)
        vector, y = room(out, self.layout)
        values = y if isinstance(y, np.ndarray) else self._pool.take(self.layout.size, np.float32)
        self.bins.write(buffers, self.counts, values)
        if not all_finite(values):
            raise CodecError("means: NaN or infinity among them")
        if values is not y:
            backend.of(y).vectors.write(values, y)
        return vector


codec("statistical 2-bit")(Statistical)
