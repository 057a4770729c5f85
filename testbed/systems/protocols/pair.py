"""Two regions that exchange what is new directly: an account between equals, which needs no third to keep it.

By way of a server a round takes two ways, up and down, and is coded twice. Where there are two, each can keep the
server's account itself. Both hold the same vector a, to the bit, and the same v; x is a region's own:

    each   q = C(g (x - a));  s = D(q) / g;  send q          a round's part; D(q) is kept until the round is over
    both   parts of a round are there: d = the mean of their D(q), and with a momentum v <- m v + d; d <- d + m v;
           a <- a + d;  x <- x + d - s

So a is the z of `accounts`, told without a code's error one way after it was sent, and every line but the momentum's,
and a g above 1, leaves

    a + mean of (x - a)

as it was. What both do with the same numbers in the same order comes to the same bits: nobody has to say what a is.

The last: each sends x - a less the s of rounds that are not over, in a finer code, and without what was added on
purpose and no steps have answered (`accounts`). The end is a with all parts that either has sent, which is the same
for both again.

Lost messages: rounds are over in order, so of two a's the one with more rounds is the later one. Who is back asks with
how many it has; who has at least as many answers with its a in float32, and who has fewer asks in turn. Both forget the
rounds that are not over: what those told is still in x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from testbed.codecs.base import Key
from testbed.message import Message
from testbed.roles.attendance import CATCH_UP
from testbed.roles.compute import Work
from testbed.systems.protocols.accounts import Accounts, Member
from testbed.systems.protocols.desk import Report

OPEN = -1  # the round of which nothing was sent


@dataclass
class Side:
    """What one of both has told and is not over; vectors are empty where there is none.

    Attributes
    ----------
    first, second : the parts of its rounds
    last : what it sent at the end
    notes : of each round, what its sender reports
    settled : the latest round that it had rested from then; `OPEN` as long as it has not sent that
    """

    first: torch.Tensor
    second: torch.Tensor
    last: torch.Tensor
    notes: list[list[float]] = field(default_factory=list)
    settled: int = OPEN

    @property
    def has_ended(self) -> bool:
        """Whether it has sent its last."""
        return self.settled != OPEN

    def add(self, part: torch.Tensor, report: Sequence[float]) -> None:
        """A round's part is there."""
        if self.notes:
            self.second = part
        else:
            self.first = part
        self.notes.append([*report])

    def pop(self) -> torch.Tensor:
        """The part of the oldest round, which is over."""
        part, self.first, self.second = self.first, self.second, self.second.new_empty(0)
        self.notes.pop(0)
        return part

    def rest(self) -> torch.Tensor:
        """All that is left at the end, its last among it."""
        parts = [part for part in (self.first, self.second, self.last) if len(part)]
        return torch.stack(parts).sum(0) if parts else self.last

    def forget(self) -> None:
        """Rounds that are not over."""
        self.first = self.second = self.last = self.first.new_empty(0)
        self.notes.clear()
        self.settled = OPEN


@dataclass
class Pair:
    """What a region knows of both; a itself, and how many rounds are over, its `Member` has."""

    mine: Side
    theirs: Side
    velocity: torch.Tensor  # v; empty as long as there is none
    went_on: int = 0  # the latest round that v moved a with

    @property
    def reports(self) -> list[Report]:
        """Both members', with the round that is over next; none where not both parts of it are there."""
        notes = self.mine.notes[:1] + self.theirs.notes[:1]
        return [Report(*note) for note in notes] if len(notes) == 2 else []


class Pairing:
    """The lines between two; what they are charged is what `Accounts` charges for a member's."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def pair(self) -> Pair:
        """Of two that have told each other nothing."""
        none = self._accounts.start.new_empty(0)
        return Pair(Side(none, none, none), Side(none, none, none), none)

    def follows(self, pair: Pair, link: Member, message: Message) -> bool:
        """Whether a round of the other's is its next."""
        return int(message.numbers[1]) == link.closed + len(pair.theirs.notes) + 1

    def hear(self, side: Side, message: Message) -> None:
        """The part of a round is there, of this one (`Accounts.send`) or the other."""
        side.add(self._accounts.codes.up[0].decode(message.buffers), message.numbers[2:])

    def close(self, pair: Pair, link: Member, momentum: float) -> torch.Tensor:
        """End a round that both parts are there of; returns what x is to be moved by."""
        moved = (pair.mine.pop() + pair.theirs.pop()).div_(2)
        if momentum:
            velocity = pair.velocity if len(pair.velocity) else torch.zeros_like(moved)
            pair.velocity = velocity.mul_(momentum).add_(moved)
            moved.add_(pair.velocity, alpha=momentum)
            pair.went_on = link.closed + 1
        else:
            self.stand(pair)
        return self._accounts.answered(link, moved)

    # The end

    def code_last(self, link: Member, x: torch.Tensor, key: Key, settled: int) -> Sequence:
        """What is left, in the finer code; `settled` as in `Accounts.send_last`."""
        buffers: Sequence = self._accounts.codes.last.encode(self._accounts.left(link, x, settled), key)
        return buffers

    def hear_last(self, side: Side, message: Message) -> None:
        """What is left is there, of this one or the other."""
        side.last, side.settled = self._accounts.codes.last.decode(message.buffers), int(message.numbers[2])

    def end(self, pair: Pair, link: Member, momentum: float) -> torch.Tensor:
        """a with all that both have sent, or this one where the other never will.

        Without the last move of v for who has not rested since.
        """
        total = link.told.clone()
        sides = [pair.mine, pair.theirs] if pair.theirs.has_ended else [pair.mine]
        for side in sides:
            if side.settled < pair.went_on:
                total.sub_(pair.velocity, alpha=momentum / len(sides))
        return total.add_(sum(side.rest() for side in sides), alpha=1 / len(sides))

    # Who was dead, or whose partner was

    def forget(self, pair: Pair, link: Member) -> None:
        """Forget the rounds that are not over, as the other does."""
        self._accounts.withdraw(link)
        pair.mine.forget()
        pair.theirs.forget()

    def reply(self, link: Member, question: Message, step: int) -> Message:
        """a for one who asks, how many rounds are in it, and the number of the question."""
        numbers = (float(step), float(link.closed), question.numbers[1])
        return Message(CATCH_UP, step, self._accounts.codes.floats.encode(link.told), numbers)

    def settle(self, pair: Pair, link: Member, reply: Message) -> torch.Tensor:
        """Go on from the other's a; returns what x is to be moved by."""
        change = self._accounts.settle(link, reply)
        if not link.asking:
            self.forget(pair, link)
            self.stand(pair)
        return change

    def stand(self, pair: Pair) -> None:
        """Forget v, which the other may not have."""
        pair.velocity, pair.went_on = pair.velocity.new_empty(0), 0

    # Charges

    def hearing(self, message: Message) -> Work:
        """Decoded and kept."""
        last = message.kind == "last"
        return self._accounts.decoding(message, last) + self._accounts.passes(1)

    def closing(self, momentum: float) -> Work:
        """Both parts and s are read, their mean is written, read and added to a and x; v and d are read and written."""
        return self._accounts.passes(9 + (5 if momentum else 0))

    def ending(self) -> Work:
        """a, v twice, and what both have sent."""
        return self._accounts.passes(8)
