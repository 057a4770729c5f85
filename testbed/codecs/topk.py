"""The elements of largest magnitude, layer by layer, exactly.

As in Deep Gradient Compression (Lin et al., ICLR 2018, section 3.1) a threshold is estimated from a sample, so that
only what exceeds it has to be ranked. There the estimate decides what is sent; here it is set low enough to let
a few more pass than are wanted, and those are ranked exactly, so that the sample has an influence on time alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Literal

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Elements, Key, elements
from testbed.codecs.buffers import BufferPool
from testbed.codecs.kernels.vectors import INFINITY_BITS
from testbed.codecs.registry import codec
from testbed.codecs.sparse import Floats, HalfFloats, Kept, Signs, SparseCodec, Values
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

ValueKind = Literal["float32", "float16", "ternary"]
VALUES: dict[ValueKind, Callable[[], Values]] = {
    "float32": Floats,
    "float16": HalfFloats,
    "ternary": Signs,
}


class Largest:
    """Finds the largest magnitudes of every layer.

    Parameters
    ----------
    layout : the model
    dense_biases : whether biases (and other vectors) keep all they have, as in the authors' own code; in CifarNet
        they would be a third of a message of 0.1 %
    """

    def __init__(self, layout: Layout, dense_biases: bool = False) -> None:
        self.layout = layout
        self.dense_biases = dense_biases
        self._pool = BufferPool()

    def wanted(self, layer: Layer, kept: float) -> int:
        """How many elements a layer keeps of those that are not zero: a fraction, rounded up, so at least one."""
        if self.dense_biases and layer.bias:
            return layer.size
        return min(layer.size, max(1, ceil(round(kept * layer.size, 6))))  # 0.1 % of 1,000 is 1 in floats, too

    def places(self, x: Elements, kept: float) -> np.ndarray:
        """The places (uint32, increasing) of the largest magnitudes, zeros never among them.

        Of equal magnitudes those that come first are taken. CodecError names the layer that holds NaN or infinity.
        """
        on, parts = backend.of(x), []
        for layer in self.layout:
            places, top = on.topk.largest(x[layer.slice], self.wanted(layer, kept), self._pool.take)
            if top >= INFINITY_BITS:
                raise NotFinite.of(f"layer {layer.name}")
            places += np.uint32(layer.offset)
            parts.append(places)
        room = self._pool.take(sum(part.size for part in parts), np.uint32)
        return np.concatenate([room[:0], *parts], out=room)


class TopK(SparseCodec):
    """The largest magnitudes of every layer.

    Parameters
    ----------
    layout : the model
    kept : the fraction of a layer's elements, above 0 up to 1
    values : how their values travel: exactly, rounded to float16, or as a sign and one scale a layer
    dense_biases : see `Largest`
    """

    costs_as = "top-k"

    def __init__(self, layout: Layout, kept: float, values: ValueKind = "float32", dense_biases: bool = False) -> None:
        super().__init__(layout, VALUES[values]())
        if not 0 < kept <= 1:
            raise CodecError(f"the kept fraction of a layer is above 0 and at most 1, not {kept}")
        self.kept = kept
        self.largest = Largest(layout, dense_biases)

    def encode(self, vector: torch.Tensor, key: Key | None = None, kept: float | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn. `kept` is of this message alone."""
        x = elements(vector, self.layout)
        places = self.largest.places(x, self.kept if kept is None else kept)
        return self.pack(Kept(places, backend.of(x).sparse.gather(x, places, self._pool.take)))


codec("top-k 0.1 %")(lambda layout: TopK(layout, 0.001))
