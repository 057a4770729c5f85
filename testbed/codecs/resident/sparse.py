"""Sparse vectors that stay on the device: `testbed.codecs.sparse` and `testbed.codecs.threshold`, to the same bytes.

How many elements are kept, and how many bytes a message has, is known only when it has been made. So it is made in
*rooms*, as long as what may be kept; the sizes are read in one transfer, the one time that a message waits, and the
buffers are the fronts of their rooms. A room is a power of two, at least twice what the message before kept, so that
few sizes come up and each can be captured; the rare message for which it is too small is made again in a larger one.

Decoding waits for nothing: the buffers' sizes say how much there is at most. A message is taken as it comes, since
whoever made it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, log2

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.device.sparse import magnitudes
from testbed.codecs.resident.base import BLOCK, Blocks, Resident, extended
from testbed.codecs.resident.rice import BYTE, Rice, Sections
from testbed.codecs.resident.values import THERE, Kept, Part, ValuesThere
from testbed.codecs.sparse import NOT_ZERO, Sparse, SparseCodec
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass
from testbed.gpu.moves import download
from testbed.gpu.places import scattered

LEAST = 1024  # elements of the smallest room
SLACK = 2  # how many times what the last message kept a room holds
Work = Callable[..., list[Tensor]]
MOST_PASSES = 32  # that a codec holds for one direction: each has memory of its own


@dataclass(frozen=True)
class Room:
    """For a message that keeps at most `size` elements.

    Parameters
    ----------
    size : elements, a multiple of 8
    rice : codes what is Rice coded of it
    capacities : bytes that each buffer has at most; they lie one after the other
    ranks : int64 [size], from 1 on
    nothing : uint8 [the largest capacity], zeros
    """

    size: int
    rice: Rice
    capacities: Sequence[int]
    ranks: Tensor
    nothing: Tensor


class SparseCodecResident(Resident):
    """What sparse codecs share: places and values to a message and back."""

    codec: SparseCodec

    def __init__(self, codec: SparseCodec, device: torch.device) -> None:
        super().__init__(codec, device, list(codec.layout))
        self.values: ValuesThere = THERE[type(codec.values)](codec.values, codec.layout, device)
        self._offsets = self.moved(np.array([layer.offset for layer in codec.layout], np.int64))
        self._bounds = self.moved(np.array([*(layer.offset for layer in codec.layout), self.layout.size], np.int64))
        longest = max((layer.size for layer in codec.layout), default=1)
        self._tops = Blocks(list(codec.layout), self.layout.size, device, min(BLOCK, longest))
        self._rooms: dict[int, Room] = {}
        self._packs: dict[Hashable, Pass] = {}
        self._unpacks: dict[int, Pass] = {}
        self._expected = 0  # elements that a message keeps

    def add(self, buffers: Sequence[Tensor], total: Tensor) -> None:
        """total += the message's vector."""
        total.add_(self.shared(buffers))

    # Rooms

    def room(self, elements: int) -> Room:
        """The smallest room for so many."""
        whole = BYTE * ceil(self.layout.size / BYTE)
        size = min(max(LEAST, 1 << max(elements - 1, 0).bit_length()), max(whole, BYTE))
        if size not in self._rooms:
            self._rooms[size] = self._made(size)
        return self._rooms[size]

    def _made(self, size: int) -> Room:
        layers, whole, rooms = len(self.layout), self.layout.size, self.values.rooms(size)
        # n gaps that come to at most N take at most n (log2(N / n) + 3) bits, and never more than the bitmap's N.
        gaps = min(whole, ceil(size * (log2(max(whole / size, 1)) + 3)))
        others = size * (self.values.largest.bit_length() + 1) if None in rooms else 0
        longest = max((layer.size for layer in self.layout), default=0)
        rice = Rice(layers, size, max(longest, self.values.largest), max(gaps, others), self.device)
        capacities = [4 * layers, rice.nbytes, *(rice.nbytes if room is None else room for room in rooms)]
        ranks = torch.arange(1, size + 1, device=self.device)
        return Room(size, rice, capacities, ranks, torch.zeros(max(capacities), dtype=torch.uint8, device=self.device))

    # Packing

    def message(
        self, work: Work, *inputs: Tensor, most: int | None = None, **fixed: float
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Make a message: its buffers, and what else `work` returns.

        Parameters
        ----------
        work : (room, inputs) -> what `packed` returns, and more
        most : elements that it keeps, where that is known before
        fixed : parameters of `work` on which its operations depend
        """
        while True:
            room = self.room(SLACK * self._expected if most is None else most)
            packed, sizes, tops, *more = self._pass(work, room, fixed)(*inputs)
            self._expected, *used = download(sizes).tolist()  # the one wait
            if self._expected <= room.size:
                break
        self.doubts.note(tops.view(torch.float32))
        starts = accumulate(room.capacities, initial=0)
        return [packed[start : start + size] for start, size in zip(starts, used, strict=False)], more

    def _pass(self, work: Work, room: Room, fixed: dict[str, float]) -> Pass:
        key = (work.__name__, room.size, *fixed.values())
        if key not in self._packs:
            if len(self._packs) == MOST_PASSES:
                del self._packs[next(iter(self._packs))]
            self._packs[key] = Pass(lambda *inputs: work(room, *inputs, **fixed), self.layout.size)
        return self._packs[key]

    def kept(self, room: Room, x: Tensor, keep: Tensor) -> Kept:
        """The elements of a vector where `keep` (bool [layout.size]) says so; of too many for the room, the first."""
        ranks = keep.cumsum(0)
        sections = room.rice.sections(self.before(ranks).diff())
        places = torch.searchsorted(ranks, room.ranks)
        values = extended(x).index_select(0, places)
        # Not of `values` by their layers: hundreds of thousands would be compared with one number of each layer.
        tops = self._tops.tops(torch.where(keep, x, 0.0))
        return Kept(places, values, sections, magnitudes(tops))

    def before(self, ranks: Tensor) -> Tensor:
        """Of running counts [..., layout.size] those before each layer, and behind the last [..., layers + 1]."""
        return torch.cat([ranks.new_zeros((*ranks.shape[:-1], 1)), ranks], -1).index_select(-1, self._bounds)

    def packed(self, room: Room, kept: Kept) -> list[Tensor]:
        """A message in rooms.

        Returns
        -------
        [uint8, the rooms one after the other; int64, how many elements are kept and how many bytes of each buffer are
        used; `kept.tops`]
        """
        sections = kept.sections
        starts = torch.cat([self._offsets, self._offsets.new_zeros(1)]).index_select(0, sections.owner)
        following = torch.cat([kept.places.new_zeros(1), kept.places[:-1] + 1])
        gaps = (kept.places - torch.maximum(following, starts)) * sections.real
        parts = [gaps, *self.values.split(kept)]
        streams = [part for part in parts if isinstance(part, Tensor)]
        coded = map(Part, *room.rice.pack(torch.stack(streams), sections))
        counts = sections.counts.to(torch.int32).view(torch.uint8)
        message = [Part(counts, torch.full_like(sections.total, len(counts)))]
        message += [next(coded) if isinstance(part, Tensor) else part for part in parts]
        sizes = torch.stack([sections.total, *(part.used for part in message)])
        return [torch.cat([part.data for part in message]), sizes, kept.tops]

    # Unpacking

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        names = self.codec.names
        if len(buffers) != len(names):
            raise CodecError(f"a message of {len(names)} buffers ({', '.join(names)}) came as {len(buffers)}")
        sizes = [buffer.nbytes for buffer in buffers]
        room = self.room(self.values.most(sizes[2:]))
        filled: list[Tensor] = []
        for name, buffer, size, capacity in zip(names, buffers, sizes, room.capacities, strict=True):
            if size > capacity:
                raise CodecError(f"{name}: {size} bytes are more than any message of this codec has")
            filled += [buffer, room.nothing[: capacity - size]]
        if room.size not in self._unpacks:
            self._unpacks[room.size] = Pass(lambda packed: [self._unpacked(room, packed)], self.layout.size)
        (vector,) = self._unpacks[room.size](torch.cat(filled))
        return vector

    def _unpacked(self, room: Room, packed: Tensor) -> Tensor:
        counts, gaps, *parts = packed.split(list(room.capacities))
        sections = room.rice.sections(counts.view(torch.int32).long())
        coded = [place for place, size in enumerate(self.values.rooms(room.size)) if size is None]
        numbers = room.rice.unpack(torch.stack([gaps, *(parts[place] for place in coded)]), sections)
        for place, found in zip(coded, numbers[1:], strict=True):
            parts[place] = found
        values = self.values.join(parts, sections)
        vector = scattered(values.new_zeros(self.layout.size + 1), self._places(numbers[0], sections), values)
        return vector[:-1]

    def _places(self, gaps: Tensor, sections: Sections) -> Tensor:
        """Where the elements belong (int64 [room]); of nothing, past the vector's end."""
        ends = (gaps + 1).cumsum(0)
        before = torch.cat([ends.new_zeros(1), ends]).index_select(0, sections.firsts[:-1])
        shifts = torch.cat([self._offsets - before - 1, before.new_full((1,), self.layout.size)])
        return (ends + shifts.index_select(0, sections.owner)).clamp(max=self.layout.size)


class AboveResident(SparseCodecResident):
    """Keeps the elements whose magnitude's bits are `bits` or more."""

    def __init__(self, codec: SparseCodec, bits: int, device: torch.device) -> None:
        super().__init__(codec, device)
        self._bits = bits

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """See the codec's `encode`."""
        buffers, _ = self.message(self._plain, self.checked(vector))
        return buffers

    def _plain(self, room: Room, x: Tensor) -> list[Tensor]:
        return self.packed(room, self.above(room, x))

    def above(self, room: Room, x: Tensor) -> Kept:
        """What is kept of a vector."""
        return self.kept(room, x, magnitudes(x) >= self._bits)


class SparseResident(AboveResident):
    """All elements that are not zero, exactly."""

    def __init__(self, codec: Sparse, device: torch.device) -> None:
        super().__init__(codec, int(NOT_ZERO), device)


class SparseMultiplesResident(AboveResident):
    """The nearest multiples of a unit."""

    def __init__(self, codec: SparseMultiples, device: torch.device) -> None:
        super().__init__(codec, int(codec.bits), device)


class ThresholdedResident(AboveResident):
    """What reaches the threshold, whole or in multiples of it."""

    def __init__(self, codec: Thresholded, device: torch.device) -> None:
        super().__init__(codec, int(codec.bits), device)

    def encode_with_feedback(self, vector: Tensor, residual: Tensor, key: Key | None = None) -> list[Tensor]:
        """Encode vector + residual; `residual` [layout.size], on the device, becomes what the message leaves of it.

        Where the sum is not finite the residual is changed, too: the error is told later.
        """
        buffers, (left,) = self.message(self._fed_back, self.checked(vector), self.checked(residual))
        residual.copy_(left)
        return buffers

    def _plain(self, room: Room, x: Tensor) -> list[Tensor]:
        return self.packed(room, self._truncated(self.above(room, x)))

    def _fed_back(self, room: Room, x: Tensor, rest: Tensor) -> list[Tensor]:
        total = rest + x
        kept = self.above(room, total)
        sent = self._truncated(kept)
        left = scattered(extended(total), kept.places, kept.values - sent.values)[:-1]
        return [*self.packed(room, sent), left]

    def _truncated(self, kept: Kept) -> Kept:
        return replace(kept, values=self.values.sent(kept))
