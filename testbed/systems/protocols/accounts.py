"""Averaging over links by double entry: each link is an account of its own, and nobody waits for a third.

A member has a vector x of its own, a server a vector z that stands for all members. `C` codes a vector, `D` decodes it.
Both ends of a link know what the server has told this member so far, at the member a, at the server b:

    member   q = C(x - a);  s = D(q);  send q                one round of a link is under way, or else: x - a - its s
    server   z <- z + share s;  p = C(z - b);  b <- b + D(p);  send p
    member   a <- a + D(p);  x <- x + D(p) - s               x has gone on meanwhile, and keeps what it made

So x becomes z, plus what C left out, plus what was made while the round was under way. With the members' shares adding
up to 1, every line leaves

    z + sum of share (x - b)

as it was: a server's line moves z by share s and (z - b) of nobody else, a member's line takes s out of x and puts in
what b has got. Only what is added to an x changes it. Neither a code's error nor delay nor order takes part in this, so
that what members add is neither lost nor counted twice. A server's z may be the x of a server above; then its lines
hold there, and the sum over the whole tree is kept.

A server that answers while some members' parts are missing, and tells z, takes from the others most of what they sent
until the missing ones are heard of. So it tells z and, for each who is missing, what that one would have sent had it
done as the others did, on the mean: its `credit`, until it is heard of. This is no part of the kept sum, which the
server's last three lines leave as it was whatever p is.

At any moment, with rounds under way, this is z + sum of share (x - a), less the s of rounds that have been counted.

A member may have what it tells counted g times: it sends q = C(g (x - a)), and s = D(q) / g is what leaves x. Then a
round that is counted adds (g - 1) share s to the kept sum, once, as s itself is. Or a server's z goes on, before it is
told, by Nesterov's momentum: v <- m v + what rounds have added since; z <- z + m v. Then m v is added to the sum.

A run may end with the same vector at every member. Each sends what is left, x - a and less the s of a round that is
still under way, in a finer code and behind that round, whose answer nobody needs any more; then z itself is told, as
what it differs by from the vector that all began at, which all know, and what is decoded of that is z and every x from
then on. What these two codes leave out is dropped, which is the only time that the kept sum changes but for this: what
was added to it and no steps have answered is taken off again. So who has a round under way sends x - a - g s; who has
not rested since the latest answer takes (g - 1) s of that round back, too; and the server takes share m v off z for
each who has not heard of that, or has not rested since. A member that is a server has heard of an answer once its own
members have been told since, and they have rested.

Messages are lost where a role dies. Rounds have numbers, a server remembers the last one that it counted, and who is
back asks (`ask`, `reply`, `settle`): rounds that were counted are taken out of x, others stay in it, and z itself
comes back in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from testbed.codecs.base import Key
from testbed.message import Message
from testbed.roles.attendance import BACK, CATCH_UP
from testbed.roles.compute import Work
from testbed.systems.protocols.base import Task

Telling = tuple[list[int], Sequence]  # the places of members, and what they are told


@dataclass
class Member:
    """A member's side of its link: a, s, and the numbers of the latest round and of the latest that is closed.

    Those between are under way: none, and s is zero; one; or another behind that one, and `behind` is its s, which is
    empty otherwise. While the member is `asking` what became of them it begins no other.
    """

    told: torch.Tensor
    sent: torch.Tensor
    behind: torch.Tensor
    over: torch.Tensor  # (g - 1) s of the latest that is closed, where g is not 1; else empty
    times: list[float] = field(default_factory=list)  # g of each that is under way
    number: int = 0
    closed: int = 0
    question: int = 0  # its latest
    asking: bool = False
    coarse: bool = False  # how it is to code

    @property
    def waiting(self) -> bool:
        """Whether the server is to say something before the next round."""
        return self.asking or self.is_under_way

    @property
    def is_under_way(self) -> bool:
        """Whether a round is."""
        return self.number > self.closed


@dataclass
class Books:
    """A server's side of all its links: z, each member's b, and the latest round that was counted of each.

    `same` has equal numbers for members whose b is equal. `parts` is what has been added to z since the last answer, by
    the members of `heard`; `credited` are those who have credit. `velocity` is v, empty as long as there is none;
    `went_on` is the round of each member that the first answer with its last move is, or was, to.
    """

    total: torch.Tensor
    told: torch.Tensor  # [members, elements]
    credit: torch.Tensor  # [members, elements]
    parts: torch.Tensor
    velocity: torch.Tensor
    counted: list[int]
    same: list[int]
    went_on: list[int]
    heard: list[int] = field(default_factory=list)
    credited: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Codes:
    """Codecs of what members send and servers answer, of the last of both, and of what is told in full.

    The first two are there twice, the finer one first; either decodes what the other has coded.
    """

    up: tuple[Any, Any]
    down: tuple[Any, Any]
    last: Any
    mean: Any
    floats: Any


class Accounts:
    """The lines of links, and what they are charged.

    The numbers of a message: the furthest step that its sender has heard of; of what a member sends then the round's.

    Parameters
    ----------
    start : what all x and z begin at
    """

    def __init__(self, task: Task, start: torch.Tensor, codes: Codes) -> None:
        self.start, self.codes = start, codes
        self._task = task
        self._vectors = codes.floats.layout.size / task.layout.size  # of the model's size, in one

    def member(self) -> Member:
        """One that has sent nothing."""
        none = self.start.new_empty(0)
        return Member(self.start.clone(), torch.zeros_like(self.start), none, none)

    def books(self, members: int) -> Books:
        """Of a server with so many members."""
        x, told = self.start, self.start.repeat(members, 1)
        none, numbers = x.new_empty(0), [0] * members
        credit, parts = torch.zeros_like(told), torch.zeros_like(x)
        return Books(x.clone(), told, credit, parts, none, numbers, [*numbers], [*numbers])

    # A round

    def send(self, member: Member, x: torch.Tensor, key: Key, times: float = 1.0) -> Sequence:
        """Open a round with what x differs by from what was told, to be counted so many times."""
        return self._open(member, x, self.codes.up[member.coarse], key, times)

    def send_last(self, member: Member, x: torch.Tensor, key: Key, settled: int) -> Sequence:
        """Open the last round, in the finer code, which takes back what is counted again and no steps have answered.

        `settled`: the latest round whose answer was heard of and rested from, here or by those below.
        """
        beyond = self._beyond(member, settled)
        buffers = self._open(member, x - beyond, self.codes.last, key)
        (member.behind if len(member.behind) else member.sent).add_(beyond)
        return buffers

    def left(self, member: Member, x: torch.Tensor, settled: int) -> torch.Tensor:
        """What `send_last` codes, whatever is under way."""
        left = x - member.told - member.sent - self._beyond(member, settled)
        return left - member.behind if len(member.behind) else left

    def _beyond(self, member: Member, settled: int) -> torch.Tensor:
        """What is counted again and no steps have answered."""
        beyond = torch.zeros_like(member.sent)
        if len(member.over) and settled < member.closed:
            beyond += member.over
        for times, sent in zip(member.times, (member.sent, member.behind), strict=False):
            beyond += (times - 1) * sent
        return beyond

    def _open(self, member: Member, x: torch.Tensor, code: Any, key: Key, times: float = 1.0) -> Sequence:
        """Open a round, behind one that may be under way."""
        buffers: Sequence = code.encode((x - member.told - member.sent).mul_(times), key)
        part = code.decode(buffers) / times
        if member.is_under_way:
            member.behind = part
        else:
            member.sent = part
        member.times.append(times)
        member.number += 1
        return buffers

    def count(self, books: Books, place: int, message: Message, last: bool = False) -> None:
        """Take a member's part into z."""
        part = (self.codes.last if last else self.codes.up[0]).decode(message.buffers)
        for into in (books.total, books.parts):
            into.add_(part, alpha=1 / len(books.counted))
        books.counted[place] = int(message.numbers[1])
        if place not in books.heard:
            books.heard.append(place)
        if place in books.credited:
            books.credited.remove(place)
            books.credit[place].zero_()

    def follows(self, books: Books, place: int, message: Message, put_by: int = 0) -> bool:
        """Whether a round is the next of its member's, behind those put by; else its member is to ask.

        One before it was lost on the way, and then neither is in z; or the server began afresh.
        """
        return int(message.numbers[1]) == books.counted[place] + put_by + 1

    def go_on(self, books: Books, places: Sequence[int], momentum: float) -> None:
        """z goes on by a momentum of what has been added to it, once, before some members are told."""
        if not len(books.velocity):
            books.velocity = torch.zeros_like(books.total)
        books.velocity.mul_(momentum).add_(books.parts)
        books.total.add_(books.velocity, alpha=momentum)
        books.went_on = [number + (place not in places) for place, number in enumerate(books.counted)]

    def take_back(self, books: Books, momentum: float) -> None:
        """z goes on by that no more for one member, which will not hear of it."""
        books.total.sub_(books.velocity, alpha=momentum / len(books.counted))

    def forget_velocity(self, books: Books) -> None:
        """Where rounds are prompt: what was a direction then says nothing of a late round that comes long after."""
        books.velocity = books.velocity.new_empty(0)
        books.went_on = [0 for _ in books.counted]

    def answer(self, books: Books, places: Sequence[int], key: Key, coarse: bool = False) -> list[Telling]:
        """What some members are told: who, and what. Whoever has been told the same is again, which is coded once."""
        code = self.codes.down[coarse]
        self._give_credit(books)
        telling = books.total
        for place in books.credited:
            telling = telling + books.credit[place]
        answers: list[Telling] = []
        for same in sorted({books.same[place] for place in places}):
            alike = [place for place in places if books.same[place] == same]
            told = books.told[alike[0]]
            buffers = code.encode(telling - told, replace(key, step=key.step + len(answers)))
            self._note(books, alike, told + code.decode(buffers))
            answers.append((alike, buffers))
        return answers

    def _note(self, books: Books, places: Sequence[int], told: torch.Tensor) -> None:
        """Of members who have been told the same all in all."""
        fresh = max(books.same) + 1
        for place in places:
            books.told[place].copy_(told)
            books.same[place] = fresh

    def _give_credit(self, books: Books) -> None:
        """To those who are missing, for as much as the others have sent."""
        if books.heard:
            missing = [place for place in range(len(books.counted)) if place not in books.heard]
            for place in missing:
                books.credit[place].add_(books.parts, alpha=1 / len(books.heard))
            books.credited = sorted({*books.credited, *missing})
        books.parts.zero_()
        books.heard.clear()

    def take(self, member: Member, message: Message) -> torch.Tensor:
        """Close the round that is under way, the first of two; returns what x is to be moved by."""
        return self.answered(member, self.codes.down[0].decode(message.buffers))

    def answered(self, member: Member, change: torch.Tensor) -> torch.Tensor:
        """The same, of an answer that tells `change`, which becomes what x is to be moved by."""
        member.told.add_(change)
        change.sub_(member.sent)
        times = member.times.pop(0) if member.times else 1.0  # one that began afresh has forgotten it
        member.over = (times - 1) * member.sent if times != 1 else member.behind.new_empty(0)
        if len(member.behind):
            member.sent, member.behind = member.behind, member.behind.new_empty(0)
        else:
            member.sent.zero_()
        member.closed += 1
        return change

    def withdraw(self, member: Member) -> None:
        """Forget the rounds under way: what they told stays in x, and their numbers are free again."""
        member.number, member.asking = member.closed, False
        self._close_all(member)

    def _close_all(self, member: Member) -> None:
        member.sent.zero_()
        member.behind = member.over = member.behind.new_empty(0)
        member.times.clear()
        member.closed = member.number

    # The end

    def close(self, books: Books, places: Sequence[int], key: Key) -> Sequence:
        """Tell z as the mean; what that is decoded to is z afterwards."""
        buffers = self.code_mean(books.total, key)
        self._become(books, places, self._mean_in(buffers))
        return buffers

    def code_mean(self, total: torch.Tensor, key: Key) -> Sequence:
        """What is told at the end: what it differs by from what all began at."""
        buffers: Sequence = self.codes.mean.encode(total - self.start, key)
        return buffers

    def pass_on(self, books: Books, places: Sequence[int], mean: Message) -> None:
        """Tell what the server has been told, or has told others: the same bits at all."""
        self._become(books, places, self._mean_in(mean.buffers))

    def take_mean(self, member: Member, mean: Message) -> torch.Tensor:
        """Close the last round, and one before it; returns what x is from here on."""
        member.told.copy_(self._mean_in(mean.buffers))
        self._close_all(member)
        return member.told

    def _mean_in(self, buffers: Sequence) -> torch.Tensor:
        mean: torch.Tensor = self.start + self.codes.mean.decode(buffers)
        return mean

    def _become(self, books: Books, places: Sequence[int], mean: torch.Tensor) -> None:
        books.total.copy_(mean)
        books.parts.zero_()
        books.heard.clear()
        self._note(books, places, mean)

    # Who was dead, or whose server was

    def ask(self, member: Member, now_s: float) -> Message:
        """Ask what became of the rounds under way; a question has no number that one of an earlier life had."""
        member.question, member.asking = max(member.question + 1, round(1000 * now_s)), True
        return Message(BACK, 0, (), tuple(map(float, (0, member.question, member.closed, member.number))))

    def reply(self, books: Books, place: int, question: Message, step: int) -> Message:
        """z for one who asks, the number of the last of its rounds that is in z, and of its question.

        A server that began afresh has forgotten what it counted: that is lost rather than counted twice.
        """
        self._note(books, [place], books.total)
        books.went_on[place] = 0
        if books.counted[place] < int(question.numbers[2]):
            books.counted[place] = int(question.numbers[3])
        numbers = (float(step), float(books.counted[place]), question.numbers[1])
        return Message(CATCH_UP, step, self.codes.floats.encode(books.total), numbers)

    def settle(self, member: Member, reply: Message) -> torch.Tensor:
        """Go on from the reply; returns what x is to be moved by.

        Rounds that are not in z were lost on the way, and their numbers are free again.
        """
        total: torch.Tensor = self.codes.floats.decode(reply.buffers)
        change = total - member.told
        member.told.copy_(total)
        if int(reply.numbers[2]) < member.question:  # the one to the latest says it anew
            return change
        counted = int(reply.numbers[1])
        if counted > member.closed:
            change.sub_(member.sent)
        if counted > member.closed + 1 and len(member.behind):
            change.sub_(member.behind)
        member.asking, member.number = False, counted
        self._close_all(member)
        return change

    # Charges: vectors read and written; what a code reads and writes is in its own

    def passes(self, count: float) -> Work:
        """Reading or writing a vector so many times."""
        return self._task.passes(count * self._vectors)

    def sending(self, buffers: Sequence) -> Work:
        """x, a and their difference; coded, and decoded for s."""
        return self._coded(self.codes.up[0], buffers) + self.passes(3)

    def sending_behind(self, buffers: Sequence) -> Work:
        """The same, and s of the round under way."""
        return self.sending(buffers) + self.passes(1)

    def sending_last(self, buffers: Sequence) -> Work:
        """The same, in another code."""
        return self._coded(self.codes.last, buffers) + self.passes(4)

    def decoding(self, message: Message, last: bool = False) -> Work:
        """What a member has sent."""
        return self._task.decoding(self.codes.last if last else self.codes.up[0], message)

    def counting(self, message: Message, last: bool = False) -> Work:
        """Decoded and added to z, and to what has been since the last answer."""
        return self.decoding(message, last) + self.passes(5)

    def answering(self, answers: Sequence[Telling]) -> Work:
        """Each: z, b and their difference; coded, and decoded for b, which is written for each member."""
        coded = (self._coded(self.codes.down[0], buffers) + self.passes(4 + len(alike)) for alike, buffers in answers)
        return sum(coded, Work())

    def taking(self, message: Message) -> Work:
        """Decoded; s is read, a and x are read and written."""
        return self._task.decoding(self.codes.down[0], message) + self.passes(6)

    def closing(self, buffers: Sequence) -> Work:
        """Coded; then as `passing_on`."""
        return self.coding_mean(buffers) + self.passing_on(Message("", 0, buffers))

    def coding_mean(self, buffers: Sequence) -> Work:
        """z, what all began at and their difference; coded."""
        return self._task.encoding(self.codes.mean)(buffers) + self.passes(3)

    def passing_on(self, mean: Message) -> Work:
        """Decoded, added to what all began at, and written to z or x, and to what a link has been told."""
        return self._task.decoding(self.codes.mean, mean) + self.passes(4)

    def _coded(self, codec: Any, buffers: Sequence) -> Work:
        charge: Callable[[Sequence], Work] = self._task.encoding(codec)
        return charge(buffers) + self._task.decoding(codec, Message("", 0, buffers))
