"""What a server of links (`servers`) has before it: what members report, whom it owes an answer, who is waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from testbed.message import Message
from testbed.systems.protocols.accounts import Books, Member
from testbed.systems.protocols.rhythm import Rhythm

LATE = 3  # times what a round takes with what is before it, one waits for who is late
FINER = 1.73  # times the bits that the finer code takes, of a Gaussian vector


class Report(NamedTuple):
    """What a member's last step, its last round, and the pause before that took it, in seconds; 0: not known.

    And what the bits of a round would take of it in the finer code, over all else (`Rhythm.bits`), and whether answers
    are late.
    """

    step_s: float = 0.0
    round_s: float = 0.0
    gap_s: float = 0.0
    bits: float = 0.0
    late: float = 0.0

    @staticmethod
    def of(link: Member, rhythm: Rhythm, step_s: float = 0.0) -> Report:
        """A member's."""
        bits = rhythm.bits(FINER if link.coarse else 1.0)
        return Report(step_s, rhythm.round_s, rhythm.gap_s, bits, float(rhythm.late))

    @property
    def pace_s(self) -> float:
        """From one round to the next."""
        return self.round_s + self.gap_s if self.round_s else 0.0


@dataclass
class ServerState:
    """An LPS or the global server; an LPS's z is its x on the `link` to the global server."""

    books: Books
    link: Member
    reports: list[list[float]]  # of each member the latest `Report`
    rhythm: Rhythm  # of the link, in the steps of the furthest
    period: int = 0  # of its members' together rounds
    furthest: int = 0  # step that it has heard of
    made: int = 0  # the furthest of its members
    told: int = 0  # answers, which numbers them
    answers: int = 0  # times it has answered since the last round on the link above
    # Of that link, the latest round whose answer the last answer but one to members had in it, and the last.
    passed_on: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def patience_s(self) -> float:
        """What an answer takes once its members wait for it; 0: none has come."""
        return self.rhythm.round_s


@dataclass
class Desk:
    """What a server has to do within a segment.

    Attributes
    ----------
    began_s : when it did
    owed : whom it owes an answer; `since_s`: the first of them
    late : who is not waited for
    last, ended : who has sent its last, who has ended its segment
    asked_above, told_above : whether a together round, the last round, has been begun with the server above
    put_by : who has begun a second round before the first was answered, and that
    held_s : since when members are to wait
    mean : what it has told at the end
    over : whether those who may be dead have been told that the segment is
    told_other : whether the other of two regions has been told so
    held : whether that one is known to have what this one has told at the end
    done : whether this one's part of the segment is over
    """

    members: tuple[str, ...]
    began_s: float
    owed: set[str] = field(default_factory=set)
    since_s: float = inf
    late: set[str] = field(default_factory=set)
    last: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    asked_above: bool = False
    told_above: bool = False
    put_by: list[tuple[str, Message]] = field(default_factory=list)
    held_s: float = inf
    mean: Message | None = None
    over: bool = False
    told_other: bool = False
    held: bool = False
    done: bool = False

    def released_s(self, state: ServerState, now_s: float) -> float:
        """Until when members are to wait; inf: they are not, or have for as long as one waits for who is late."""
        until_s = self.held_s + LATE * (state.patience_s or self.held_s - self.began_s)
        return until_s if now_s < until_s else inf

    def forget(self, peer: str) -> None:
        """What it has sent has been answered otherwise."""
        self.put_by = [each for each in self.put_by if each[0] != peer]
        self.owed.discard(peer)
        self.last.discard(peer)
        if not self.owed:
            self.since_s = inf

    def absent(self) -> list[str]:
        """Who is waited for by those who are owed an answer."""
        here = self.owed | self.late | self.last | self.ended
        return [peer for peer in self.members if peer not in here]

    def complete(self) -> bool:
        """Whether there are such, and all they wait for are there."""
        return bool(self.owed) and not self.absent()

    def members_are(self, here: set[str]) -> bool:
        """Whether `here` is all of them."""
        return here.issuperset(self.members)


def furthest_in(message: Message) -> int:
    """The furthest step that the sender has heard of; 0 of one who asks."""
    return int(message.numbers[0]) if message.numbers else 0
