"""Thresholded gradients: what is below a fixed threshold waits (Anooseh et al., "Thresholded Gradient
Synchronization in Distributed ConvNets", section 2.1, after Strom, Interspeech 2015).

The codecs here leave out what a residual is to keep: `testbed.codecs.memory.ErrorFeedback` makes senders of them.
"""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs import rice
from testbed.codecs.base import Buffers, Key, WireBuffers, flat
from testbed.codecs.sparse import (
    NOT_ZERO,
    Floats,
    Kept,
    SparseCodec,
    add_select,
    finite,
    gathered,
    pack_bits,
    select,
    unpack_bits,
)
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
        if not (np.isfinite(unit) and unit > 0 and limit >= 1):
            raise CodecError(f"values are multiples of a positive unit, 1 to a limit; not {unit} and {limit}")
        self.unit, self.limit = unit, limit
        self.names: tuple[str, ...] = ("signs",) if limit == 1 else ("signs", "multiples")

    def levels(self, values: np.ndarray) -> np.ndarray:
        """The multiples nearest to |values|, cut to the limit, as float64."""
        return np.minimum(np.rint(np.abs(values.astype(np.float64)) / self.unit), self.limit)

    def values(self, levels: np.ndarray, negative: np.ndarray) -> np.ndarray:
        """The float32 values of multiples."""
        magnitudes = (levels * self.unit).astype(np.float32)
        return np.negative(magnitudes, out=magnitudes, where=negative)

    def encode(self, values: np.ndarray, counts: np.ndarray) -> Buffers:
        signs = pack_bits(values < 0)
        if self.limit == 1:
            return [signs]
        return [signs, rice.pack(self.levels(values).astype(np.uint32) - np.uint32(1), counts)]

    def decode(self, buffers: WireBuffers, counts: np.ndarray) -> np.ndarray:
        negative = unpack_bits(buffers[0], int(counts.sum()), "signs")
        if self.limit == 1:
            return self.values(np.ones(negative.size), negative)
        less_one = rice.unpack(buffers[1], counts, "multiples")
        if (less_one >= self.limit).any():
            raise CodecError(f"multiples: one is above {self.limit}")
        return self.values(less_one + 1.0, negative)


class SparseMultiples(SparseCodec):
    """The nearest multiples of a unit: what servers add up and average of messages in multiples.

    The sum of messages whose levels add up to L is within messages * L / 2^24 of a unit's level, so exact in its
    levels: n messages of up to 255 up to n = 180; any number of them where the unit is a power of two.

    Parameters
    ----------
    layout : the model
    unit, limit : see `Multiples`
    """

    values: Multiples

    def __init__(self, layout: Layout, unit: float, limit: int) -> None:
        super().__init__(layout, Multiples(unit, limit))

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = flat(vector, self.layout)
        places = select(x, NOT_ZERO)
        values = gathered(x, places)
        present = self.values.levels(values) != 0  # NaN is: `pack` refuses it
        return self.pack(Kept(places[present], values[present]))


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

    def __init__(self, layout: Layout, threshold: float, limit: int | None = None) -> None:
        rounded = np.float32(threshold)
        if not (np.isfinite(rounded) and rounded > 0):
            raise CodecError(f"a threshold is a positive float32, not {threshold}")
        self.threshold = float(rounded)
        self._bits = rounded.view(np.uint32)
        super().__init__(layout, Floats() if limit is None else Multiples(self.threshold, limit))

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = flat(vector, self.layout)
        places = select(x, self._bits)
        return self.pack(Kept(places, self._truncated(gathered(x, places), places)))

    def encode_with_feedback(self, vector: torch.Tensor, residual: torch.Tensor, key: Key | None = None) -> Buffers:
        """Encode vector + residual and bring the residual up to date; an error in the vector leaves it as it was."""
        kept_back = flat(residual, self.layout)
        places = add_select(finite(vector, self.layout), kept_back, self._bits)
        values = gathered(kept_back, places)
        sent = self._truncated(values, places)
        buffers = self.pack(Kept(places, sent))
        kept_back[places] = values - sent
        return buffers

    def _truncated(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        """What is sent of values that reach the threshold; CodecError where one is infinite, or was added up to it."""
        self.require_finite(values, places)
        if not isinstance(self.values, Multiples):
            return values
        levels = np.floor(np.abs(values.astype(np.float64)) / self.values.unit)
        return self.values.values(np.minimum(levels, self.values.limit), values < 0)
