"""Rice codes that are made and read on the device: `testbed.codecs.lossless.rice`, with nothing waited for.

How many numbers there are, and how long their code is, the device alone knows. So both lie in *rooms*, whose sizes the
host knows: numbers at the front of one, with nothing (zeros) behind them, and so the bytes of their code.

Several streams of numbers that fall into the same sections are coded together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from testbed.codecs.kernels.rice import MAX_PARAMETER
from testbed.gpu.places import add_whole, running

BYTE = 8
READ_BYTES = 5  # hold a remainder of up to 31 bits, wherever in a byte it begins


@dataclass(frozen=True)
class Sections:
    """How the numbers of a room fall into sections.

    Parameters
    ----------
    counts : int64 [sections], the numbers in each
    firsts : int64 [sections + 1], the first number of each, and how many there are in all
    owner : int64 [room], each number's section; of nothing, how many sections there are
    real : int64 [room], 1 for each number, 0 for nothing
    """

    counts: Tensor
    firsts: Tensor
    owner: Tensor
    real: Tensor

    @property
    def total(self) -> Tensor:
        """How many numbers there are (int64 scalar)."""
        return self.firsts[-1]


class Rice:
    """Codes streams of as many numbers as fit into a room.

    Parameters
    ----------
    sections : how many there are, at least one
    room : for numbers, at least one
    largest : of the numbers, below 2^32
    most_bits : that the code of a stream takes, its parameters and what fills up its bytes apart

    Attributes
    ----------
    nbytes : the room for the code of a stream
    """

    def __init__(self, sections: int, room: int, largest: int, most_bits: int, device: torch.device) -> None:
        self._sections = sections
        bits = BYTE * (ceil(most_bits / BYTE) + 2 + READ_BYTES)
        self.nbytes, self._packed = sections + bits // BYTE, bits // BYTE
        self._most = min(largest.bit_length(), MAX_PARAMETER)
        self._powers = torch.arange(largest.bit_length() + 1, device=device)
        self._index, self._bit = torch.arange(room, device=device), torch.arange(bits, device=device)
        self._spread = self._index % self._packed
        self._in_byte = torch.arange(BYTE, dtype=torch.uint8, device=device)
        self._read = torch.arange(READ_BYTES, device=device).view(-1, 1, 1)
        self._read_bits = BYTE * self._read

    def sections(self, counts: Tensor) -> Sections:
        """Sections of so many numbers each (int64 [sections])."""
        ends = counts.cumsum(0)
        firsts = torch.cat([ends.new_zeros(1), ends])
        owner = torch.searchsorted(ends, self._index, right=True)
        return Sections(counts, firsts, owner, (self._index < ends[-1]).long())

    def pack(self, numbers: Tensor, sections: Sections) -> tuple[Tensor, Tensor]:
        """Code numbers (int64 [streams, room]).

        Returns
        -------
        (uint8 [streams, nbytes], int64 [streams]: how many of the bytes are the code); where there are more numbers
        than the room is for, neither means anything
        """
        parameters = self._parameters(numbers, sections)
        width = _with_none(parameters).index_select(1, sections.owner)
        begins, unary = _begins(parameters, sections)
        lengths = (numbers >> width) + sections.real  # of quotients, their ends included
        ends = unary + running(lengths)
        starts = self._starts(sections, begins, width)
        remainders = (numbers & ((1 << width) - 1)) << (starts & 7)
        marks = sections.real << ((ends - 1) & 7)  # of nothing none
        places = torch.cat([(starts >> 3) + self._read, ((ends - 1) >> 3).unsqueeze(0)]).clamp(0, self._packed - 1)
        parts = torch.cat([(remainders >> self._read_bits) & 255, marks.unsqueeze(0)])
        places = torch.where(parts > 0, places, self._spread)  # what adds nothing, not all to one place
        used = self._sections + ((ends[:, -1] + BYTE - 1) >> 3)
        return torch.cat([parameters.to(torch.uint8), self._written(places, parts)], 1), used

    def _written(self, places: Tensor, parts: Tensor) -> Tensor:
        """Bytes [streams, packed] of which each is the sum of its parts, no two of which have a bit in common."""
        streams = places.shape[1]
        room = parts.new_zeros(streams * self._packed, dtype=torch.int32)
        rows = self._packed * torch.arange(streams, device=places.device).view(1, -1, 1)
        add_whole(room, (places + rows).view(-1), parts.to(torch.int32).view(-1))
        return room.to(torch.uint8).view(streams, -1)

    def unpack(self, code: Tensor, sections: Sections) -> Tensor:
        """The numbers (int64 [streams, room]) of codes (uint8 [streams, nbytes]), which are taken as they come."""
        parameters, packed = code[:, : self._sections].long(), code[:, self._sections :]
        width = _with_none(parameters).index_select(1, sections.owner)
        begins, unary = _begins(parameters, sections)
        flags = ((packed.unsqueeze(2) >> self._in_byte) & 1).view(len(code), -1)
        ranks = running(flags * (self._bit >= unary))
        marks = torch.searchsorted(ranks, (self._index + 1).repeat(len(code), 1))
        quotients = marks - torch.cat([unary - 1, marks[:, :-1]], 1) - 1
        return ((quotients << width) | self._read_at(packed, sections, begins, width)) * sections.real

    def _parameters(self, numbers: Tensor, sections: Sections) -> Tensor:
        """The parameter (int64 [streams, sections]) that the kernel's descent ends at.

        Each bit of a remainder costs a bit a number and saves what it takes off the quotients, which is less with each
        further bit: as many bits are worth it as save no less than they cost. Of a number v the bit j saves
        ceil((v >> j) / 2), which is v / 2^(j + 1) or half of one beside it. So in a section of mean m all bits are
        worth it for which 2^j is at most m / 3, none for which it is above m; the two between are looked at.
        """
        means = self._sums(numbers, sections) // sections.counts.clamp(min=1)
        first = (means.unsqueeze(-1) >> self._powers).clamp(max=1).sum(-1) - 2  # of the two, from -2 on
        looked_at = torch.stack([first, first + 1])
        shifts = torch.cat([looked_at, looked_at.new_zeros(*looked_at.shape[:-1], 1)], -1).clamp(min=0)
        halves = ((numbers >> shifts.index_select(-1, sections.owner)) + 1) >> 1
        worth = (looked_at < 0) | (self._sums(halves, sections) >= sections.counts.clamp(min=1))
        return (first + worth.sum(0)).clamp(0, self._most)

    def _sums(self, numbers: Tensor, sections: Sections) -> Tensor:
        """Of the numbers [..., room] of each section [..., sections]."""
        whole = torch.cat([numbers.new_zeros(*numbers.shape[:-1], 1), running(numbers)], -1)
        return whole.index_select(-1, sections.firsts.clamp(max=numbers.shape[-1])).diff()

    def _starts(self, sections: Sections, begins: Tensor, width: Tensor) -> Tensor:
        """The bit at which each number's remainder begins (int64 [streams, room])."""
        inside = self._index - sections.firsts.index_select(0, sections.owner)
        return begins.index_select(1, sections.owner) + inside * width

    def _read_at(self, packed: Tensor, sections: Sections, begins: Tensor, width: Tensor) -> Tensor:
        """Each number's remainder (int64 [streams, room])."""
        at = self._starts(sections, begins, width)
        places = ((at >> 3) + self._read).clamp(max=packed.shape[1] - 1)
        found = torch.stack([packed.gather(1, place) for place in places]).long()
        return ((found << self._read_bits).sum(0) >> (at & 7)) & ((1 << width) - 1)


def _with_none(parameters: Tensor) -> Tensor:
    """The parameters, and behind them that of nothing."""
    return torch.cat([parameters, parameters.new_zeros(len(parameters), 1)], 1)


def _begins(parameters: Tensor, sections: Sections) -> tuple[Tensor, Tensor]:
    """The bits at which sections' remainders begin, and all end [streams, sections + 1].

    And, from the next whole byte on, where the quotients begin [streams, 1].
    """
    ends = (parameters * sections.counts).cumsum(1)
    return torch.cat([ends.new_zeros(len(ends), 1), ends], 1), (ends[:, -1:] + BYTE - 1) & -BYTE
