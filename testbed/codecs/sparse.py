"""Sparse vectors on the wire: which elements are kept, as gaps in a Rice code, and their values.

A message's buffers, numbers little-endian:

1. counts: uint32, how many elements each layer keeps;
2. gaps: for each kept element the number of elements skipped since the one before it (or since its layer began), one
   section a layer (`testbed.codecs.lossless.rice`);
3. and on: the values of the kept elements, layer after layer, as the codec says (`Values`).

At one element in 1,000 a place costs 11.5 bits; where most are kept, a bit for each element of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from testbed.codecs import backend, kernels
from testbed.codecs.base import (
    Buffers,
    Elements,
    Key,
    VectorCodec,
    WireBuffers,
    all_finite,
    elements,
    expect,
    require_finite,
    room,
    stretches,
    wire_array,
)
from testbed.codecs.buffers import Allocate
from testbed.codecs.lossless import rice
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layout

NOT_ZERO = np.uint32(1)  # the bits of the smallest magnitude that is not zero


@dataclass(frozen=True)
class Kept:
    """The elements of a vector that are kept: `values` float32 [kept] at `places` uint32 [kept], increasing."""

    places: np.ndarray
    values: np.ndarray


class Values(Protocol):
    """How the values of kept elements travel.

    `counts` (int64) says how many belong to each layer; `allocate` gives memory for what is returned, and on the way.
    """

    names: tuple[str, ...]  # of the buffers, for errors

    def encode(self, values: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> Buffers:
        """Code finite values, float32 [sum of counts]."""

    def decode(self, buffers: WireBuffers, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
        """The values, float32 [sum of counts]; CodecError when the buffers are not those of that many."""


class Floats:
    """Values as float32, exactly. The kept values of a layer are of much the same size, so exponents are coded short.

    Three buffers: the largest exponent (the 8 bits of its float32) in each layer, a byte each; how far the exponent of
    each value is below that, in a Rice code, one section a layer; of each value the other 24 bits, the sign above the
    fraction, in three bytes. Values among the largest of a gradient take 26 bits, the worst case 33.
    """

    names: tuple[str, ...] = ("exponents", "lower exponents", "fractions")

    def encode(self, values: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> Buffers:
        largest, lower = np.empty(counts.size, np.uint8), allocate(values.size, np.uint32)
        fractions = allocate(3 * values.size, np.uint8)
        kernels.sparse.split_floats(values, counts, largest, lower, fractions)
        return [largest, rice.pack(lower, counts, allocate), fractions]

    def decode(self, buffers: WireBuffers, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
        largest = wire_array(buffers[0], np.uint8, counts.size, "exponents")
        fractions = wire_array(buffers[2], np.uint8, 3 * int(counts.sum()), "fractions")
        lower = rice.unpack(buffers[1], counts, "lower exponents", allocate)
        values = allocate(lower.size, np.float32)
        if not kernels.sparse.join_floats(largest, lower, fractions, counts, values):
            raise CodecError("lower exponents: one is below 0")
        return values


class HalfFloats:
    """Values as float16: rounded to nearest, cut to +-65,504."""

    names: tuple[str, ...] = ("values",)

    def encode(self, values: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> Buffers:
        halves = allocate(values.size, np.uint16)
        kernels.half.pack(values, halves, np.float32(1), np.float32(np.finfo(np.float16).max))
        return [halves.view(np.float16)]

    def decode(self, buffers: WireBuffers, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
        halves = wire_array(buffers[0], np.uint16, int(counts.sum()), "values")
        values = allocate(halves.size, np.float32)
        kernels.half.unpack(halves, values, np.float32(1))
        return values


class Signs:
    """Values as +-scale, the scale of a layer being the mean magnitude of what it keeps.

    The scale that makes the squared error smallest; "sparse ternary" in Sattler et al., "Robust and
    Communication-Efficient Federated Learning from Non-IID Data", 2019, Algorithm 1. Two buffers: float32 scales, one
    a layer; a bit for each value, 1 where it is negative, the first in the lowest bit.
    """

    names: tuple[str, ...] = ("scales", "signs")

    def encode(self, values: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> Buffers:
        magnitudes = np.abs(values, out=allocate(values.size, np.float32))
        means = [magnitudes[place].mean(dtype=np.float64) if place.stop > place.start else 0.0 for place in _of(counts)]
        return [np.array(means, np.float32), pack_signs(values, allocate)]

    def decode(self, buffers: WireBuffers, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
        scales = wire_array(buffers[0], np.float32, counts.size, "scales")
        signs = view_signs(buffers[1], int(counts.sum()))
        values = allocate(int(counts.sum()), np.float32)
        for scale, place in zip(scales, _of(counts), strict=True):
            values[place] = scale
        kernels.sparse.negate(signs, values)
        return values


def pack_signs(values: np.ndarray, allocate: Allocate) -> np.ndarray:
    """A bit for each value, 1 where it is negative; `kernels.sparse.negate` puts the signs back."""
    signs = allocate(-(-values.size // 8), np.uint8)
    kernels.sparse.sign_bits(values, signs)
    return signs


def view_signs(buffer: Any, count: int) -> np.ndarray:
    """The bits of so many signs from the wire; CodecError on another number of bytes."""
    return wire_array(buffer, np.uint8, -(-count // 8), "signs")


def _of(counts: np.ndarray) -> tuple[slice, ...]:
    return stretches(counts.tolist())


class SparseCodec(VectorCodec):
    """Packs kept elements into messages, and decodes these; subclasses say which elements of a vector are kept.

    Parameters
    ----------
    layout : the model, of fewer than 2^32 elements
    values : how the kept values travel
    """

    costs_as = "sparse"

    def __init__(self, layout: Layout, values: Values) -> None:
        if layout.size >= 1 << 32:
            raise CodecError(f"a sparse message has 32-bit places; the model has {layout.size} parameters")
        super().__init__(layout)
        self.values = values
        self._offsets = np.array([layer.offset for layer in layout], np.int64)
        self._ends = np.array([layer.end for layer in layout], np.int64)
        self._bounds = np.append(self._offsets, layout.size).astype(np.uint32)
        self.names = ("counts", "gaps", *values.names)

    def pack(self, kept: Kept) -> Buffers:
        """The message; CodecError names the layer whose kept values are not finite."""
        counts = self._counts(kept.places)
        self._check(kept.values, counts)
        gap_codes = rice.pack(self._gaps(kept.places, counts), counts, self._pool.take)
        return [counts.astype(np.uint32), gap_codes, *self.values.encode(kept.values, counts, self._pool.take)]

    def _gaps(self, places: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The number of elements skipped before each place, from its layer's offset or the place before it."""
        gaps = self._pool.take(places.size, np.uint32)
        np.subtract(places[1:], places[:-1], out=gaps[1:])
        gaps[1:] -= np.uint32(1)
        firsts = (np.cumsum(counts) - counts)[counts > 0]
        gaps[firsts] = places[firsts] - self._offsets[counts > 0]
        return gaps

    def unpack(self, buffers: WireBuffers) -> Kept:
        """What a message keeps.

        Raises
        ------
        CodecError : it is not one of this codec; more than a layer has is found out before room for it is made
        """
        expect(buffers, self.names)
        counts = wire_array(buffers[0], np.uint32, len(self.layout), "counts").astype(np.int64)
        beyond = counts > self._ends - self._offsets
        if beyond.any():
            raise self._beyond(int(beyond.argmax()))
        places = rice.unpack(buffers[1], counts, "gaps", self._pool.take)
        layer = kernels.sparse.places_of(places, counts, self._offsets, self._ends)
        if layer >= 0:
            raise self._beyond(layer)
        values = self.values.decode(buffers[2:], counts, self._pool.take)
        self._check(values, counts)
        return Kept(places, values)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write the kept values where they belong, zero elsewhere; see `Codec.decode`."""
        kept = self.unpack(buffers)
        vector, y = room(out, self.layout)
        vector.zero_()
        backend.of(y).sparse.put(y, kept.places, kept.values)
        return vector

    def add(self, buffers: WireBuffers, total: torch.Tensor) -> None:
        """Add a message's values to a vector [layout.size] in place, going only where there are any."""
        kept = self.unpack(buffers)
        _, y = room(total, self.layout)
        backend.of(y).sparse.add(y, kept.places, kept.values)

    def sent(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        """What the receiver of finite values at these places decodes."""
        counts = self._counts(places)
        buffers = self.values.encode(values, counts, self._pool.take)
        return self.values.decode(buffers, counts, self._pool.take)

    def _counts(self, places: np.ndarray) -> np.ndarray:
        """How many of the (increasing) places lie in each layer."""
        return np.diff(np.searchsorted(places, self._bounds))

    def require_finite(self, values: np.ndarray, places: np.ndarray) -> None:
        """CodecError names the layer of the first value, at these places, that is not finite."""
        self._check(values, self._counts(places))

    def _check(self, values: np.ndarray, counts: np.ndarray) -> None:
        if all_finite(values):
            return
        for layer, place in zip(self.layout, _of(counts), strict=True):
            if not all_finite(values[place]):
                raise NotFinite.of(f"layer {layer.name}")

    def _beyond(self, position: int) -> CodecError:
        layer = self.layout.layers[position]
        return CodecError(f"layer {layer.name}: a message keeps elements beyond its {layer.size}")


class Sparse(SparseCodec):
    """All elements that are not zero, exactly (a negative zero comes back as zero): what servers add up.

    Parameters
    ----------
    layout : the model
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, Floats())

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        places = on.sparse.select(x, NOT_ZERO, self._pool.take)
        return self.pack(Kept(places, on.sparse.gather(x, places, self._pool.take)))


def finite(vector: torch.Tensor, layout: Layout) -> Elements:
    """See `elements`; CodecError names the layer that holds NaN or infinity."""
    x = elements(vector, layout)
    require_finite(x, layout)
    return x
