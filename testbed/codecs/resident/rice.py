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

BYTE = 8
AT_ONCE = 1 << 25  # numbers that are looked at in all ways at once; of more, memory would be short
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
        self.nbytes = sections + bits // BYTE
        shifts = torch.arange(min(largest.bit_length(), MAX_PARAMETER) + 1, device=device).view(-1, 1)
        self._shifts = shifts.split(max(AT_ONCE // room, 1))
        self._index, self._bit = torch.arange(room, device=device), torch.arange(bits, device=device)
        self._in_byte = torch.arange(BYTE, dtype=torch.uint8, device=device)
        self._read = torch.arange(READ_BYTES, device=device).view(-1, 1)
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
        widths = _with_none(parameters)
        begins, unary = _begins(parameters, sections)
        lengths = (
            numbers >> widths.index_select(1, sections.owner)
        ) + sections.real  # of quotients, their ends included
        # Nothing has no length: it marks the last number's end again; without any number, what is no part of the code.
        marks = (unary + lengths.cumsum(1) - 1).clamp(0, len(self._bit) - 1)
        flags = numbers.new_zeros(len(numbers), len(self._bit), dtype=torch.uint8).scatter(1, marks, 1)
        flags = torch.where(self._bit < begins[:, -1:], self._remainders(numbers, sections, begins, widths), flags)
        packed = (flags.view(len(numbers), -1, BYTE) << self._in_byte).sum(2, dtype=torch.uint8)
        used = self._sections + ((unary[:, 0] + lengths.sum(1) + BYTE - 1) >> 3)
        return torch.cat([parameters.to(torch.uint8), packed], 1), used

    def unpack(self, code: Tensor, sections: Sections) -> Tensor:
        """The numbers (int64 [streams, room]) of codes (uint8 [streams, nbytes]), which are taken as they come."""
        parameters, packed = code[:, : self._sections].long(), code[:, self._sections :]
        width = _with_none(parameters).index_select(1, sections.owner)
        begins, unary = _begins(parameters, sections)
        flags = ((packed.unsqueeze(2) >> self._in_byte) & 1).view(len(code), -1)
        ranks = (flags * (self._bit >= unary)).cumsum(1)
        marks = torch.searchsorted(ranks, (self._index + 1).repeat(len(code), 1))
        quotients = marks - torch.cat([unary - 1, marks[:, :-1]], 1) - 1
        return ((quotients << width) | self._read_at(packed, sections, begins, width)) * sections.real

    def _parameters(self, numbers: Tensor, sections: Sections) -> Tensor:
        """The parameter (int64 [streams, sections]) that the kernel's descent ends at.

        Each bit of a remainder costs a bit a number and saves what it takes off the quotients, which is less with each
        further bit: as many bits are worth it as save no less than they cost.
        """
        last = (sections.firsts - 1).clamp(0, numbers.shape[1] - 1)  # before each section
        sums = [(numbers.unsqueeze(1) >> shifts).cumsum(2).index_select(2, last) for shifts in self._shifts]
        before = torch.cat(sums, 1)
        quotients = torch.where(sections.firsts > 0, before, 0).diff(dim=2)
        saved = -quotients.diff(dim=1)
        return (saved >= sections.counts.clamp(min=1)).sum(1)

    def _remainders(self, numbers: Tensor, sections: Sections, begins: Tensor, widths: Tensor) -> Tensor:
        """What each bit of a code is if it belongs to a remainder (uint8 [streams, bits])."""
        bit = self._bit.repeat(len(numbers), 1)
        owner = torch.searchsorted(begins[:, 1:].contiguous(), bit, right=True)
        width, inside = widths.gather(1, owner).clamp(min=1), bit - begins.gather(1, owner)
        number = sections.firsts[owner] + inside // width
        found = numbers.gather(1, number.clamp(max=numbers.shape[1] - 1))
        return ((found >> (inside % width)) & 1).to(torch.uint8)

    def _read_at(self, packed: Tensor, sections: Sections, begins: Tensor, width: Tensor) -> Tensor:
        """Each number's remainder (int64 [streams, room])."""
        inside = self._index - sections.firsts.index_select(0, sections.owner)
        at = begins.index_select(1, sections.owner) + inside * width
        places = (at >> 3).unsqueeze(1) + self._read
        found = packed.long().gather(1, places.view(len(packed), -1)).view(places.shape)
        return ((found << self._read_bits).sum(1) >> (at & 7)) & ((1 << width) - 1)


def _with_none(parameters: Tensor) -> Tensor:
    """The parameters, and behind them that of nothing."""
    return torch.cat([parameters, parameters.new_zeros(len(parameters), 1)], 1)


def _begins(parameters: Tensor, sections: Sections) -> tuple[Tensor, Tensor]:
    """The bits at which sections' remainders begin, and all end [streams, sections + 1].

    And, from the next whole byte on, where the quotients begin [streams, 1].
    """
    ends = (parameters * sections.counts).cumsum(1)
    return torch.cat([ends.new_zeros(len(ends), 1), ends], 1), (ends[:, -1:] + BYTE - 1) & -BYTE
