"""How the values of kept elements travel, made and read on the device: the `Values` of `testbed.codecs.sparse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.chunked import Bins
from testbed.codecs.device.planar import quotient
from testbed.codecs.resident.base import Measures, extended
from testbed.codecs.resident.bins import Cells
from testbed.codecs.resident.rice import BYTE, Sections
from testbed.codecs.sparse import Floats, HalfFloats, Signs
from testbed.codecs.threshold import Multiples
from testbed.gpu.moves import upload
from testbed.gpu.places import scattered
from testbed.layout import Layout

_FRACTION, _SIGN, _FRACTION_BITS = 0x7FFFFF, 0x800000, 23  # the sign 8 bits down
_EXPONENT = 0xFF
_LARGEST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Kept:
    """Elements of a vector that are kept, at the front of a room; behind them zeros at a place past the vector's end.

    Parameters
    ----------
    places : int64 [room], increasing
    values : float32 [room]
    sections : those of each layer
    tops : int32 [layers], the bits of the largest magnitude found in each layer; those of NaN where there is one
    """

    places: Tensor
    values: Tensor
    sections: Sections
    tops: Tensor


class Part(NamedTuple):
    """A buffer at the front of its room: uint8 [room], and how many of the bytes are used (int64 scalar)."""

    data: Tensor
    used: Tensor


class ValuesThere(Protocol):
    """Codes and decodes values in rooms; a buffer that is a Rice code it gives and takes as numbers (int64 [room]).

    Attributes
    ----------
    largest : of these numbers
    """

    largest: int

    def rooms(self, room: int) -> list[int | None]:
        """Bytes of each buffer of so many values at most; None for a Rice code."""

    def most(self, nbytes: Sequence[int]) -> int:
        """How many values buffers of so many bytes hold at most."""

    def split(self, kept: Kept) -> list[Part | Tensor]:
        """What travels of the values."""

    def join(self, parts: Sequence[Tensor], sections: Sections) -> Tensor:
        """The values (float32 [room]) of buffers and numbers; of nothing, anything."""

    def sent(self, kept: Kept) -> Tensor:
        """What a receiver makes of the values (float32 [room])."""


class FloatsThere:
    """See `Floats`: the largest exponent of a layer, how far each is below it, the rest."""

    largest = _EXPONENT

    def __init__(self, codec: Floats, layout: Layout, device: torch.device) -> None:
        self._layers = len(layout)
        self._bytes = upload(np.array([0, 8, 16], np.int32), device)

    def rooms(self, room: int) -> list[int | None]:
        return [self._layers, None, 3 * room]

    def most(self, nbytes: Sequence[int]) -> int:
        return nbytes[2] // 3

    def split(self, kept: Kept) -> list[Part | Tensor]:
        bits, sections = kept.values.view(torch.int32), kept.sections
        tops = kept.tops >> _FRACTION_BITS
        lower = _by_owner(tops, sections) - ((bits >> _FRACTION_BITS) & _EXPONENT)
        rest = (bits & _FRACTION) | ((bits >> BYTE) & _SIGN)
        fractions = (rest.view(-1, 1) >> self._bytes).to(torch.uint8).view(-1)
        exponents = Part(tops.to(torch.uint8), torch.full_like(sections.total, self._layers))
        return [exponents, lower * sections.real, Part(fractions, 3 * sections.total)]

    def join(self, parts: Sequence[Tensor], sections: Sections) -> Tensor:
        largest, lower, fractions = parts
        rest = (fractions.view(-1, 3).to(torch.int32) << self._bytes).sum(1, dtype=torch.int32)
        exponents = _by_owner(largest.to(torch.int32), sections) - lower.to(torch.int32)
        bits = (rest & _FRACTION) | ((rest & _SIGN) << BYTE) | (exponents << _FRACTION_BITS)
        return bits.view(torch.float32)

    def sent(self, kept: Kept) -> Tensor:
        return kept.values


class HalvesThere:
    """See `HalfFloats`."""

    largest = 0

    def __init__(self, codec: HalfFloats, layout: Layout, device: torch.device) -> None:
        pass

    def rooms(self, room: int) -> list[int | None]:
        return [2 * room]

    def most(self, nbytes: Sequence[int]) -> int:
        return nbytes[0] // 2

    def split(self, kept: Kept) -> list[Part | Tensor]:
        return [Part(self._halves(kept).view(torch.uint8), 2 * kept.sections.total)]

    def join(self, parts: Sequence[Tensor], sections: Sections) -> Tensor:
        return parts[0].clone().view(torch.float16).float()  # a copy begins where halves may

    def sent(self, kept: Kept) -> Tensor:
        return self._halves(kept).float()

    def _halves(self, kept: Kept) -> Tensor:
        return kept.values.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()


class SignsThere:
    """See `Signs`: the mean magnitude of what a layer keeps, equal to the CPU's to rounding."""

    largest = 0

    def __init__(self, codec: Signs, layout: Layout, device: torch.device) -> None:
        self._layers, self._size = len(layout), layout.size
        self._measures = Measures(list(layout), layout.size, device)

    def rooms(self, room: int) -> list[int | None]:
        return [4 * self._layers, room // BYTE]

    def most(self, nbytes: Sequence[int]) -> int:
        return BYTE * nbytes[1]

    def split(self, kept: Kept) -> list[Part | Tensor]:
        scales = self._scales(kept).view(torch.uint8)
        return [Part(scales, torch.full_like(kept.sections.total, len(scales))), _signs(kept)]

    def join(self, parts: Sequence[Tensor], sections: Sections) -> Tensor:
        scales = parts[0].clone().view(torch.float32)  # a copy begins where floats may
        return _signed(_by_owner(scales, sections), parts[1])

    def sent(self, kept: Kept) -> Tensor:
        return torch.copysign(_by_owner(self._scales(kept), kept.sections), kept.values)

    def _scales(self, kept: Kept) -> Tensor:
        """Sums of all elements of a layer, zeros where none are kept: in an order that does not depend on these."""
        sizes = scattered(kept.values.new_zeros(self._size + 1), kept.places, kept.values.abs())
        (totals,) = self._measures.sums(self._measures.blocks(sizes).sum(1, dtype=torch.float64))
        return (totals / kept.sections.counts.clamp(min=1)).float()


class MultiplesThere:
    """See `Multiples`: signs, and where the limit is above 1 the multiples."""

    def __init__(self, codec: Multiples, layout: Layout, device: torch.device) -> None:
        self._unit, self._limit, self.largest = codec.unit, codec.limit, codec.limit - 1

    def rooms(self, room: int) -> list[int | None]:
        return [room // BYTE, None] if self._limit > 1 else [room // BYTE]

    def most(self, nbytes: Sequence[int]) -> int:
        return BYTE * nbytes[0]

    def split(self, kept: Kept) -> list[Part | Tensor]:
        if self._limit == 1:
            return [_signs(kept)]
        nearest = self._levels(kept.values).round() - 1  # halves to even, as the kernel does
        nearest = nearest.nan_to_num()  # what is no number is told later: until then it has a code
        return [_signs(kept), nearest.clamp(0, self._limit - 1).long()]

    def join(self, parts: Sequence[Tensor], sections: Sections) -> Tensor:
        levels = parts[1] + 1 if self._limit > 1 else torch.ones_like(sections.owner)
        return _signed((levels.double() * self._unit).float(), parts[0])

    def sent(self, kept: Kept) -> Tensor:
        """The largest multiples up to the magnitudes, cut to the limit; a message has just these."""
        levels = self._levels(kept.values).floor().clamp(max=self._limit)
        return torch.copysign((levels * self._unit).float(), kept.values)

    def _levels(self, values: Tensor) -> Tensor:
        return quotient(values.abs().double(), self._unit)


class BinsThere:
    """See `Bins`; a layer, of which a mean is taken, has several sections."""

    largest = 0

    def __init__(self, codec: Bins, layout: Layout, device: torch.device) -> None:
        layers = np.repeat(np.arange(len(codec.chunks)), codec.chunks)
        sizes = np.bincount(layers, [section.size for section in layout], len(codec.chunks)).astype(np.int64)
        self._cells, self._size = Cells(codec, sizes.tolist(), device), layout.size
        self._means = codec.count * len(codec.chunks)
        self._first = upload(codec.count * layers, device)  # mean of each section

    def rooms(self, room: int) -> list[int | None]:
        return [4 * self._means, room // self._cells.per_byte]

    def most(self, nbytes: Sequence[int]) -> int:
        return self._cells.per_byte * nbytes[1]

    def split(self, kept: Kept) -> list[Part | Tensor]:
        means, bins = self._measured(kept)
        total, per_byte = kept.sections.total, self._cells.per_byte
        packed = self._cells.packed(bins * kept.sections.real.to(torch.uint8))
        means = means.view(torch.uint8)
        return [Part(means, torch.full_like(total, len(means))), Part(packed, (total + per_byte - 1) // per_byte)]

    def join(self, parts: Sequence[Tensor], sections: Sections) -> Tensor:
        means = parts[0].clone().view(torch.float32)  # a copy begins where floats may
        return self._of(means, self._cells.unpacked(parts[1]), sections)

    def sent(self, kept: Kept) -> Tensor:
        means, bins = self._measured(kept)
        return self._of(means, bins, kept.sections) * kept.sections.real

    def _measured(self, kept: Kept) -> tuple[Tensor, Tensor]:
        """Means and bins, of all elements of which those that are kept are looked at.

        Which these are then changes nothing about the order of sums.
        """
        values = scattered(kept.values.new_zeros(self._size + 1), kept.places, kept.values)[:-1]
        means, bins = self._cells.measured(values, values != 0)
        return means, extended(bins).index_select(0, kept.places)

    def _of(self, means: Tensor, bins: Tensor, sections: Sections) -> Tensor:
        return means.index_select(0, _by_owner(self._first, sections) + bins)


THERE: dict[type, Any] = {
    Bins: BinsThere,
    Floats: FloatsThere,
    HalfFloats: HalvesThere,
    Signs: SignsThere,
    Multiples: MultiplesThere,
}
"""By the type of a codec's values on the CPU, what makes those on a device."""


def _by_owner(of_layers: Tensor, sections: Sections) -> Tensor:
    """What there is of each layer, for each number; zero for nothing."""
    return torch.cat([of_layers, of_layers.new_zeros(1)]).index_select(0, sections.owner)


def _signs(kept: Kept) -> Part:
    """A bit for each value, 1 where it is negative, the first in the lowest bit."""
    places = torch.arange(BYTE, dtype=torch.uint8, device=kept.values.device)
    flags = (kept.values < 0).view(-1, BYTE).to(torch.uint8)
    return Part((flags << places).sum(1, dtype=torch.uint8), (kept.sections.total + BYTE - 1) >> 3)


def _signed(sizes: Tensor, signs: Tensor) -> Tensor:
    """Magnitudes with the signs of `_signs`."""
    places = torch.arange(BYTE, dtype=torch.uint8, device=signs.device)
    negative = ((signs.view(-1, 1) >> places) & 1).view(-1)
    return torch.where(negative > 0, -sizes, sizes)
