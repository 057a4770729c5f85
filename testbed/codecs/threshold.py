"""Thresholded gradients: what is below a fixed threshold waits (Anooseh et al., "Thresholded Gradient
Synchronization in Distributed ConvNets", section 2.1, after Strom, Interspeech 2015).

The codecs here leave out what a residual is to keep: `testbed.codecs.memory.ErrorFeedback` makes senders of them.
"""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs import backend, kernels
from testbed.codecs.base import Buffers, Key, WireBuffers, beside, elements
from testbed.codecs.buffers import Allocate
from testbed.codecs.lossless import rice
from testbed.codecs.sparse import Floats, Kept, SparseCodec, finite, pack_signs, view_signs
from testbed.errors import CodecError
from testbed.layout import Layout


class Multiples:
    """Values as whole multiples of a unit, each of 1 to `limit`, and a sign.

    Buffers: a bit for each value, 1 where it is negative, the first in the lowest bit; and, where the limit is above
    1, the multiples less one in a Rice code, one section a layer.

    A value is level * unit, multiplied in float64 and rounded once to float32. Encoding takes the nearest level, so
    that values which sums of such roundings have moved by far less than half a unit keep their level exactly.
    """

    def __init__(self, unit: float, limit: int) -> None:
        if not (np.isfinite(unit) and unit > 0 and 1 <= limit < 1 << 32):
            raise CodecError(f"values are multiples of a positive unit, 1 to a limit; not {unit} and {limit}")
        self.unit, self.limit = unit, limit
        self.names: tuple[str, ...] = ("signs",) if limit == 1 else ("signs", "multiples")

    @property
    def smallest(self) -> np.float32:
        """The smallest magnitude whose nearest multiple is not zero."""
        magnitude = np.float32(self.unit / 2)
        while np.rint(float(magnitude) / self.unit) == 0:
            magnitude = np.nextafter(magnitude, np.float32(np.inf))
        return magnitude

    def truncated(self, values: np.ndarray, allocate: Allocate) -> np.ndarray:
        """The largest multiples up to the magnitudes of values, cut to the limit, with the values' signs."""
        multiples = self._values(self._levels(values, False, allocate), allocate)
        return np.copysign(multiples, values, out=multiples)

    def encode(self, values: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> Buffers:
        signs = pack_signs(values, allocate)
        if self.limit == 1:
            return [signs]
        levels = self._levels(values, True, allocate)
        levels -= np.uint32(1)
        return [signs, rice.pack(levels, counts, allocate)]

    def decode(self, buffers: WireBuffers, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
        signs = view_signs(buffers[0], int(counts.sum()))
        if self.limit == 1:
            values = allocate(int(counts.sum()), np.float32)
            values.fill(self.unit)
        else:
            levels = rice.unpack(buffers[1], counts, "multiples", allocate)
            if levels.max(initial=0) >= self.limit:
                raise CodecError(f"multiples: one is above {self.limit}")
            levels += np.uint32(1)
            values = self._values(levels, allocate)
        kernels.sparse.negate(signs, values)
        return values

    def _levels(self, values: np.ndarray, nearest: bool, allocate: Allocate) -> np.ndarray:
        """The multiples nearest to |values|, or those below, cut to the limit, uint32."""
        levels = allocate(values.size, np.uint32)
        kernels.threshold.levels_of(values, self.unit, self.limit, nearest, levels)
        return levels

    def _values(self, levels: np.ndarray, allocate: Allocate) -> np.ndarray:
        values = allocate(levels.size, np.float32)
        kernels.threshold.multiples_of(levels, self.unit, values)
        return values


class SparseMultiples(SparseCodec):
    """The nearest multiples of a unit: what servers add up and average of messages in multiples.

    The sum of messages whose levels add up to L is within messages * L / 2^24 of a unit's level, so exact in its
    levels: n messages of up to 255 up to n = 180; any number of them where the unit is a power of two.

    Parameters
    ----------
    layout : the model
    unit, limit : see `Multiples`
    """

    def __init__(self, layout: Layout, unit: float, limit: int) -> None:
        multiples = Multiples(unit, limit)
        super().__init__(layout, multiples)
        self.bits = multiples.smallest.view(np.uint32)

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        places = on.sparse.select(x, self.bits, self._pool.take)
        return self.pack(Kept(places, on.sparse.gather(x, places, self._pool.take)))


class Thresholded(SparseCodec):
    """What reaches the threshold T: |x| >= T.

    - whole (`limit` None, the paper's WGT): x itself;
    - in multiples: the largest multiple of T up to |x|, at most `limit` (1: BGT, +-T; 255: QGT). For negative x the
      paper's listing rounds away from zero and bounds m * T rather than m; its text, which is followed here, takes
      the multiple below the magnitude, of up to 255. Where |x| stays above T * `limit`, what is kept grows without
      bound: with BGT, T has to be above most gradients.

    With feedback, x = vector + residual (rounded to float32) is what is sent plus what is kept. That holds to the
    last bit for WGT, and in multiples for |x| < 2 T * `limit`; beyond that what is kept is rounded to float32, unless
    T is a power of two and |x| at most 2^24 T.

    Parameters
    ----------
    layout : the model
    threshold : T, a positive float32
    limit : the largest multiple of T that is sent; None: whole values

    Attributes
    ----------
    threshold : T, rounded to float32
    """

    costs_as = "thresholded"

    def __init__(self, layout: Layout, threshold: float, limit: int | None = None) -> None:
        rounded = np.float32(threshold)
        if not (np.isfinite(rounded) and rounded > 0):
            raise CodecError(f"a threshold is a positive float32, not {threshold}")
        self.threshold = float(rounded)
        self.bits = rounded.view(np.uint32)
        super().__init__(layout, Floats() if limit is None else Multiples(self.threshold, limit))

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        places = on.sparse.select(x, self.bits, self._pool.take)
        return self.pack(Kept(places, self._truncated(on.sparse.gather(x, places, self._pool.take), places)))

    def encode_with_feedback(self, vector: torch.Tensor, residual: torch.Tensor, key: Key | None = None) -> Buffers:
        """Encode vector + residual and bring the residual up to date; an error in the vector leaves it as it was."""
        x, kept_back = finite(vector, self.layout), beside(residual, vector, self.layout)
        on = backend.of(x)
        places = on.sparse.add_select(x, kept_back, self.bits, self._pool.take)
        values = on.sparse.gather(kept_back, places, self._pool.take)
        sent = self._truncated(values, places)
        buffers = self.pack(Kept(places, sent))
        on.sparse.put(kept_back, places, np.subtract(values, sent, out=values))
        return buffers

    def _truncated(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        """What is sent of values that reach the threshold; CodecError where one is infinite, or was added up to it."""
        self.require_finite(values, places)
        return self.values.truncated(values, self._pool.take) if isinstance(self.values, Multiples) else values
