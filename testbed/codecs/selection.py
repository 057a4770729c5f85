"""Which layers a codec quantizes, and the float32 part of a message that carries the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.codecs import backend
from testbed.codecs.base import Elements, require_finite, stretches, wire_array
from testbed.codecs.buffers import BufferPool
from testbed.layout import Layer, Layout


class Selection:
    """The layers of a model in two parts.

    Parameters
    ----------
    layout : the model
    chosen : says of a layer whether it is quantized; by default all are

    Attributes
    ----------
    coded, floats : the layers that are quantized, and those that stay in float32
    indexes : of the coded layers in the layout, which key their random numbers
    nbytes : of the float layers
    """

    def __init__(self, layout: Layout, chosen: Callable[[Layer], bool] | None = None) -> None:
        places = [(i, layer) for i, layer in enumerate(layout) if chosen is None or chosen(layer)]
        self.indexes = tuple(i for i, _ in places)
        self.coded = tuple(layer for _, layer in places)
        self.floats = tuple(layer for i, layer in enumerate(layout) if i not in set(self.indexes))
        self._places = stretches(layer.size for layer in self.floats)
        self.nbytes = 4 * sum(layer.size for layer in self.floats)
        self._pool = BufferPool()

    def gather(self, x: Elements) -> np.ndarray:
        """A copy of the float layers of a vector, one after the other; CodecError names one that is not finite."""
        on, values = backend.of(x), self._pool.take(self.nbytes // 4, np.float32)
        for layer, place in zip(self.floats, self._places, strict=True):
            values[place] = on.vectors.host(x[layer.slice])
        require_finite(values, self.floats)
        return values

    def view(self, buffer: Any) -> np.ndarray:
        """The float layers from the wire; CodecError when they are not as many, or one is not finite."""
        values = wire_array(buffer, np.float32, self.nbytes // 4, "float layers")
        require_finite(values, self.floats)
        return values

    def scatter(self, values: np.ndarray, x: Elements) -> None:
        """The inverse of `gather`, into a vector [layout.size]."""
        on = backend.of(x)
        for layer, place in zip(self.floats, self._places, strict=True):
            on.vectors.write(values[place], x[layer.slice])
