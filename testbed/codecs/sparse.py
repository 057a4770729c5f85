"""Sparse vectors on the wire: which elements are kept, as gaps in a Rice code, and their values.

A message's buffers, numbers little-endian:

1. counts: uint32, how many elements each layer keeps;
2. gaps: for each kept element the number of elements skipped since the one before it (or since its layer began), one
   section a layer (`testbed.codecs.rice`);
3. and on: the values of the kept elements, layer after layer, as the codec says (`Values`).

At one element in 1,000 a place costs 11.5 bits; where most are kept, a bit for each element of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from testbed.codecs import kernels, lanes, rice, sparse_kernels
from testbed.codecs.base import (
    Buffers,
    Elements,
    Key,
    WireBuffers,
    elements,
    expect,
    flat,
    require_finite,
    room,
    stretches,
    to_device,
    to_host,
    wire_array,
)
from testbed.codecs.device import sparse as on_device
from testbed.codecs.threads import in_chunks
from testbed.errors import CodecError
from testbed.layout import Layout

NOT_ZERO = np.uint32(1)  # the bits of the smallest magnitude that is not zero


@dataclass(frozen=True)
class Kept:
    """The elements of a vector that are kept: `values` float32 [kept] at `places` uint32 [kept], increasing."""

    places: np.ndarray
    values: np.ndarray


class Values(Protocol):
    """How the values of kept elements travel. `counts` (int64) says how many belong to each layer."""

    names: tuple[str, ...]  # of the buffers, for errors

    def encode(self, values: np.ndarray, counts: np.ndarray) -> Buffers:
        """Code finite values, float32 [sum of counts]."""

    def decode(self, buffers: WireBuffers, counts: np.ndarray) -> np.ndarray:
        """The values, float32 [sum of counts]; CodecError when the buffers are not those of that many."""


class Floats:
    """Values as float32, exactly. The kept values of a layer are of much the same size, so exponents are coded short.

    Three buffers: the largest exponent (the 8 bits of its float32) in each layer, a byte each; how far the exponent of
    each value is below that, in a Rice code, one section a layer; of each value the other 24 bits, the sign above the
    fraction, in three bytes. Values among the largest of a gradient take 26 bits, the worst case 33.
    """

    names: tuple[str, ...] = ("exponents", "lower exponents", "fractions")

    def encode(self, values: np.ndarray, counts: np.ndarray) -> Buffers:
        largest, lower = np.empty(counts.size, np.uint8), np.empty(values.size, np.uint32)
        fractions = np.empty(3 * values.size, np.uint8)
        sparse_kernels.split_floats(values, counts, largest, lower, fractions)
        return [largest, rice.pack(lower, counts), fractions]

    def decode(self, buffers: WireBuffers, counts: np.ndarray) -> np.ndarray:
        largest = wire_array(buffers[0], np.uint8, counts.size, "exponents")
        fractions = wire_array(buffers[2], np.uint8, 3 * int(counts.sum()), "fractions")
        lower = rice.unpack(buffers[1], counts, "lower exponents")
        values = np.empty(lower.size, np.float32)
        if not sparse_kernels.join_floats(largest, lower, fractions, counts, values):
            raise CodecError("lower exponents: one is below 0")
        return values


class HalfFloats:
    """Values as float16: rounded to nearest, cut to +-65,504."""

    names: tuple[str, ...] = ("values",)

    def encode(self, values: np.ndarray, counts: np.ndarray) -> Buffers:
        limit = np.float32(np.finfo(np.float16).max)
        return [values.clip(-limit, limit).astype(np.float16)]

    def decode(self, buffers: WireBuffers, counts: np.ndarray) -> np.ndarray:
        return wire_array(buffers[0], np.float16, int(counts.sum()), "values").astype(np.float32)


class Signs:
    """Values as +-scale, the scale of a layer being the mean magnitude of what it keeps.

    The scale that makes the squared error smallest; "sparse ternary" in Sattler et al., "Robust and
    Communication-Efficient Federated Learning from Non-IID Data", 2019, Algorithm 1. Two buffers: float32 scales, one
    a layer; a bit for each value, 1 where it is negative, the first in the lowest bit.
    """

    names: tuple[str, ...] = ("scales", "signs")

    def encode(self, values: np.ndarray, counts: np.ndarray) -> Buffers:
        magnitudes = np.abs(values)
        means = [magnitudes[place].mean(dtype=np.float64) if place.stop > place.start else 0.0 for place in _of(counts)]
        return [np.array(means, np.float32), pack_bits(values < 0)]

    def decode(self, buffers: WireBuffers, counts: np.ndarray) -> np.ndarray:
        scales = wire_array(buffers[0], np.float32, counts.size, "scales")
        negative = unpack_bits(buffers[1], int(counts.sum()), "signs")
        values = np.repeat(scales, counts)
        return np.negative(values, out=values, where=negative)


def pack_bits(flags: np.ndarray) -> np.ndarray:
    """Flags as bits, the first in the lowest bit of the first byte."""
    return np.packbits(flags, bitorder="little")


def unpack_bits(buffer: Any, count: int, name: str) -> np.ndarray:
    """The inverse of `pack_bits`, bool [count]; CodecError on another number of bytes."""
    packed = wire_array(buffer, np.uint8, -(-count // 8), name)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def _of(counts: np.ndarray) -> tuple[slice, ...]:
    return stretches(counts.tolist())


class SparseCodec:
    """Packs kept elements into messages, and decodes these; subclasses say which elements of a vector are kept.

    Parameters
    ----------
    layout : the model, of fewer than 2^32 elements
    values : how the kept values travel
    """

    def __init__(self, layout: Layout, values: Values) -> None:
        if layout.size >= 1 << 32:
            raise CodecError(f"a sparse message has 32-bit places; the model has {layout.size} parameters")
        lanes.warm_up()
        self.layout = layout
        self.values = values
        self._offsets = np.array([layer.offset for layer in layout], np.int64)
        self._ends = np.array([layer.end for layer in layout], np.int64)
        self._bounds = np.append(self._offsets, layout.size).astype(np.uint32)
        self._names = ("counts", "gaps", *values.names)

    def pack(self, kept: Kept) -> Buffers:
        """The message; CodecError names the layer whose kept values are not finite."""
        counts = self._counts(kept.places)
        self._check(kept.values, counts)
        gaps = np.empty_like(kept.places)
        sparse_kernels.gaps_of(kept.places, counts, self._offsets, gaps)
        return [counts.astype(np.uint32), rice.pack(gaps, counts), *self.values.encode(kept.values, counts)]

    def unpack(self, buffers: WireBuffers) -> Kept:
        """What a message keeps.

        Raises
        ------
        CodecError : it is not one of this codec; more than a layer has is found out before room for it is made
        """
        expect(buffers, self._names)
        counts = wire_array(buffers[0], np.uint32, len(self.layout), "counts").astype(np.int64)
        beyond = counts > self._ends - self._offsets
        if beyond.any():
            raise self._beyond(int(beyond.argmax()))
        places = rice.unpack(buffers[1], counts, "gaps")
        layer = sparse_kernels.places_of(places, counts, self._offsets, self._ends)
        if layer >= 0:
            raise self._beyond(layer)
        values = self.values.decode(buffers[2:], counts)
        self._check(values, counts)
        return Kept(places, values)

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write the kept values where they belong, zero elsewhere; see `Codec.decode`."""
        kept = self.unpack(buffers)
        vector, y = room(out, self.layout)
        vector.zero_()
        if isinstance(y, torch.Tensor):
            y[to_device(kept.places.astype(np.int64), y)] = to_device(kept.values, y)
        else:
            sparse_kernels.scatter(kept.places, kept.values, y)
        return vector

    def add(self, buffers: WireBuffers, total: torch.Tensor) -> None:
        """Add a message's values to a vector [layout.size] in place, going only where there are any."""
        kept = self.unpack(buffers)
        _, y = room(total, self.layout)
        if isinstance(y, torch.Tensor):
            y.index_add_(0, to_device(kept.places.astype(np.int64), y), to_device(kept.values, y))
        else:
            sparse_kernels.scatter_add(kept.places, kept.values, y)

    def sent(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        """What the receiver of finite values at these places decodes."""
        counts = self._counts(places)
        return self.values.decode(self.values.encode(values, counts), counts)

    def _counts(self, places: np.ndarray) -> np.ndarray:
        """How many of the (increasing) places lie in each layer."""
        return np.diff(np.searchsorted(places, self._bounds))

    def require_finite(self, values: np.ndarray, places: np.ndarray) -> None:
        """CodecError names the layer of the first value, at these places, that is not finite."""
        self._check(values, self._counts(places))

    def _check(self, values: np.ndarray, counts: np.ndarray) -> None:
        if np.isfinite(values).all():
            return
        for layer, place in zip(self.layout, _of(counts), strict=True):
            if not np.isfinite(values[place]).all():
                raise CodecError(f"layer {layer.name}: NaN or infinity among its values")

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
        places = select(x, NOT_ZERO)
        return self.pack(Kept(places, gathered(x, places)))


def select(x: Elements, threshold: np.uint32, start: int = 0) -> np.ndarray:
    """The places (uint32, increasing, from `start`) of the elements with bits of the magnitude >= threshold > 0.

    NaN and infinity are always among them.
    """
    if isinstance(x, torch.Tensor):
        return (to_host(on_device.select(x, threshold)) + start).astype(np.uint32)

    def chosen(first: int, last: int) -> np.ndarray:
        out = np.empty(last - first + 1, np.uint32)
        return out[: sparse_kernels.select(x[first:last], threshold, start + first, out)].copy()

    return joined(in_chunks(chosen, x.size))


def add_select(x: np.ndarray, total: np.ndarray, threshold: np.uint32) -> np.ndarray:
    """total += x, and `select` from the total, in one pass."""

    def chosen(first: int, last: int) -> np.ndarray:
        out = np.empty(last - first + 1, np.uint32)
        count = sparse_kernels.add_select(x[first:last], total[first:last], threshold, first, out)
        return out[:count].copy()

    return joined(in_chunks(chosen, x.size))


def gathered(x: Elements, places: np.ndarray) -> np.ndarray:
    """x[places]; numpy would first widen the places to 64 bits."""
    if isinstance(x, torch.Tensor):
        return to_host(x[to_device(places.astype(np.int64), x)])
    values = np.empty(places.size, np.float32)
    sparse_kernels.gather(x, places, values)
    return values


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Places from one stretch after the other, in one array."""
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def finite(vector: torch.Tensor, layout: Layout) -> np.ndarray:
    """See `flat`; CodecError names the layer that holds NaN or infinity."""
    x = flat(vector, layout)
    largest = in_chunks(lambda start, stop: kernels.largest_bits(x[start:stop]), x.size)
    if max(largest, default=0) >= kernels.INFINITY_BITS:
        require_finite(x, layout)
    return x
