"""The elements of largest magnitude, layer by layer, exactly.

As in Deep Gradient Compression (Lin et al., ICLR 2018, section 3.1) a threshold is estimated from a sample, so that
only what exceeds it has to be ranked. There the estimate decides what is sent; here it is set low enough to let
a few more pass than are wanted, and those are ranked exactly, so that the sample has an influence on time alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from typing import Literal

import numpy as np
import torch

from testbed.codecs import kernels, sparse_kernels
from testbed.codecs.base import Buffers, Elements, Key, elements, to_host
from testbed.codecs.buffers import BufferPool
from testbed.codecs.device import sparse as on_device
from testbed.codecs.sparse import (
    NOT_ZERO,
    Floats,
    HalfFloats,
    Kept,
    Signs,
    SparseCodec,
    Values,
    gathered,
    joined,
    select,
)
from testbed.errors import CodecError
from testbed.layout import Layer, Layout

ValueKind = Literal["float32", "float16", "ternary"]
VALUES: dict[ValueKind, Callable[[], Values]] = {
    "float32": Floats,
    "float16": HalfFloats,
    "ternary": Signs,
}

SAMPLE = 1 << 14  # elements of a large layer that are looked at for an estimate
RANKED_WHOLE = 1 << 13  # elements of a layer below which a sample saves nothing
_DEVIATIONS = 4  # how far the estimate is off the wanted rank, in its standard deviations, so that few retries happen
_ABS, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(kernels.INFINITY_BITS)


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
        self._samples: dict[int, np.ndarray] = {}
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
        parts = [self._of_layer(layer, x, self.wanted(layer, kept)) for layer in self.layout]
        return joined(parts, self._pool.take)

    def _of_layer(self, layer: Layer, x: Elements, wanted: int) -> np.ndarray:
        places, high = self._candidates(x[layer.slice], wanted, layer.offset)
        bits = self._magnitudes(x, places)
        if bits.size and bits.max() >= _INFINITY:
            raise CodecError(f"layer {layer.name}: NaN or infinity among its values")
        if places.size > wanted:
            sparse_kernels.keep_largest(places, bits, self._threshold(bits, wanted, high), wanted)
        return places[:wanted]

    def _candidates(self, x: Elements, wanted: int, start: int) -> tuple[np.ndarray, np.uint32]:
        """Places (from `start`) with the wanted ones among them; the bits from which on none need be ranked."""
        if isinstance(x, torch.Tensor):
            return (to_host(on_device.largest_places(x, wanted)) + start).astype(np.uint32), _INFINITY
        low, high = self._estimate(x, wanted)
        places = select(x, low, start, self._pool.take)
        if places.size < wanted and low > NOT_ZERO:
            return select(x, NOT_ZERO, start, self._pool.take), _INFINITY
        return places, high

    def _estimate(self, x: np.ndarray, wanted: int) -> tuple[np.uint32, np.uint32]:
        """The bits of two magnitudes: very likely fewer than are wanted reach the second, and more the first."""
        if x.size < RANKED_WHOLE:
            return NOT_ZERO, _INFINITY
        bits = self._magnitudes(x, self._sample(x.size))
        expected = wanted / x.size * bits.size
        margin = _DEVIATIONS * sqrt(expected) + _DEVIATIONS
        last = bits.size - 1
        low, high = last - int(expected + margin), last - max(int(expected - margin), 0)
        bits.partition([max(low, 0), high])
        return (
            max(bits[low], NOT_ZERO) if low >= 0 else NOT_ZERO,
            bits[high] if high < last else _INFINITY,
        )

    def _sample(self, size: int) -> np.ndarray:
        """Places of a sample of a layer, one drawn from each of equal stretches; the same at every call."""
        if size not in self._samples:
            count = min(SAMPLE, size // 4)
            starts = np.arange(count, dtype=np.int64) * size // count
            drawn = np.random.default_rng(size).integers(0, size // count, count)
            self._samples[size] = (starts + drawn).astype(np.uint32)
        return self._samples[size]

    def _magnitudes(self, x: Elements, places: np.ndarray) -> np.ndarray:
        """The bits of |x[places]|, which order magnitudes as numbers do; free to be written to."""
        bits = gathered(x, places, self._pool.take).view(np.uint32)
        return np.bitwise_and(bits, _ABS, out=bits)

    def _threshold(self, bits: np.ndarray, wanted: int, high: np.uint32) -> np.uint32:
        """The smallest of the `wanted` largest of more bits than that.

        Only those below `high` are ranked, unless there are too many of the others.
        """
        near = self._pool.take(bits.size, np.uint32)
        fewer = near[: sparse_kernels.below(bits, high, near)]
        missing = wanted - (bits.size - fewer.size)
        if missing <= 0:
            near[:] = bits
            fewer, missing = near, wanted
        fewer.partition(fewer.size - missing)
        return fewer[-missing]


class TopK(SparseCodec):
    """The largest magnitudes of every layer.

    Parameters
    ----------
    layout : the model
    kept : the fraction of a layer's elements, above 0 up to 1
    values : how their values travel: exactly, rounded to float16, or as a sign and one scale a layer
    dense_biases : see `Largest`
    """

    def __init__(self, layout: Layout, kept: float, values: ValueKind = "float32", dense_biases: bool = False) -> None:
        super().__init__(layout, VALUES[values]())
        if not 0 < kept <= 1:
            raise CodecError(f"the kept fraction of a layer is above 0 and at most 1, not {kept}")
        self.kept = kept
        self.largest = Largest(layout, dense_biases)

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = elements(vector, self.layout)
        places = self.largest.places(x, self.kept)
        return self.pack(Kept(places, gathered(x, places, self._pool.take)))
