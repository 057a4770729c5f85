"""Servers of links that are averaged each for itself (`accounts`): whom they answer when, and how a run ends.

An LPS and the global server are the same, but that an LPS is a member of the global server's as well, with its z for an
x. A server answers when all members are there, so that each is told the mean of all, or when those who are not are
late: it waits three times as long as a round takes by what members report, and then no more for who has not come until
it is heard of (`Absent`); meanwhile that one has credit (`accounts`). Whether members go on while they wait is their
affair. The next round of a link begins some steps after the answer (`rhythm`).

An LPS whose members have made `stale_batches` of steps that no other region has heard of lets them wait ("hold"):
copies that far apart have a mean that more steps make no better. What they have by then goes up at once, behind a round
that may be under way, so that the wait is a round's from there. It is over once that is answered, or late as above: who
is cut off goes on.

An LPS of one member has nothing to average with that but what comes over its own link: it tells the member until when
that rests, and theirs rests as long. A server of several whose rounds are all late may have a momentum (`accounts`).

A run may end with the average at every worker: all send what they have not told yet ("last"), up to the global server,
whose z is then the mean of all x and comes down, the same bytes to all ("mean"). That closes rounds that are under way,
too: nobody waits for their answers first, and who has sent its last is owed none.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from statistics import mean
from typing import Any

import torch

from testbed.codecs.base import Key
from testbed.message import Message
from testbed.record.events import Absent
from testbed.roles.attendance import BACK, CATCH_UP
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.roles import kind_of
from testbed.roles.traits import OVER
from testbed.systems.protocols.accounts import Accounts, Member
from testbed.systems.protocols.desk import LATE, Desk, Report, ServerState, furthest_in
from testbed.systems.protocols.inbox import Inbox
from testbed.systems.protocols.link_rules import LinkRules
from testbed.systems.protocols.rhythm import Rest, Rhythm

EMPTY = "empty"  # a message that is to be answered by another
HOLD = "hold"  # one by which members are to wait for the next answer


class AveragingServers(LinkRules):
    """The servers; a subclass adds the worker, and says which rounds are together.

    Attributes
    ----------
    accounts : the links of both levels
    wan_together : whether an LPS answers only after a round with the global server, where that is due
    wan_rest, carried : steps between the global server's answer and an LPS's next round; of the workers' optimizer
    stale_batches : of steps that the others have not heard of, with which an LPS's members wait; 0: they never do
    """

    accounts: Accounts
    wan_together = False
    wan_rest: Rest = "auto"
    carried: float
    stale_batches = 0
    returning = ("worker", "lps", "gs")

    @abstractmethod
    def period(self, state: ServerState) -> int:
        """Steps from one round of a member to the next, in which it waits for the answer; 0: it waits for none."""

    def returns(self, name: str) -> bool:
        return kind_of(name) in self.returning

    def server_state(self, name: str) -> ServerState:
        """The state that a server starts from."""
        members = len(self.task.roles.clients_of(name))
        reports = [[*Report()] for _ in range(members)]
        rhythm = self.server_rhythm(name)
        return ServerState(self.accounts.books(members), self.accounts.member(), reports, rhythm)

    def server_rhythm(self, name: str) -> Rhythm:
        """What a server's link starts from."""
        return Rhythm(late=not self.wan_together and name != self.task.roles.global_server)

    def report(self, link: Member, rhythm: Rhythm, step_s: float = 0.0) -> tuple[float, ...]:
        """What a member tells with a round; whether that is late is of use to a server with a momentum."""
        report = Report.of(link, rhythm, step_s)
        return report if self.outer_momentum else report[:-1]

    async def begin_segment(self, node: Node, state: Any) -> None:
        """Send the server an empty message, to measure what that takes; ask about a round whose answer was lost.

        Segments end with all rounds answered, but of those who were dead then.
        """
        state.rhythm.ask(node.now())
        await node.send(self.above(node), Message(EMPTY))
        if state.link.is_under_way and not state.link.asking:
            await self.ask_again(node, state)

    def above(self, node: Node) -> str:
        """Whom it has a link with as a member."""
        return node.server

    async def lps(self, node: Node, state: ServerState) -> None:
        await self._serve(node, state)

    async def global_server(self, node: Node, state: ServerState) -> None:
        await self._serve(node, state)

    async def _serve(self, node: Node, state: ServerState) -> None:
        """Take in all that has come, then answer; until the members' segment is over."""
        inbox, desk = self.inbox(node), Desk(node.clients, node.now())
        if node.name != node.global_server:
            await self.begin_segment(node, state)
        while inbox.items or self._awaits(node, state, desk) or not node.all_ended(desk.members):
            until_s = min(self._deadline_s(state, desk), desk.released_s(state, node.now()))
            arrived = await inbox.next(node, "its members", until_s)
            if arrived is not None:
                await self._take_in(node, state, desk, *arrived[:2])
            elif node.now() >= self._deadline_s(state, desk):
                self._leave_out_late(node, state, desk)
            if not inbox.items:
                desk.ended = {peer for peer in desk.members if node.all_ended([peer])}
                await self._hold(node, state, desk)
                await self._answer(node, state, desk)
                await self._send_above(node, state, desk)
                await self._end(node, state, desk)
        await self._stay(node, state, desk, inbox)

    def inbox(self, node: Node) -> Inbox:
        """What comes to a server."""
        return Inbox(node)

    def _awaits(self, node: Node, state: ServerState, desk: Desk) -> bool:
        """Whether its segment waits for a message from above."""
        return state.link.waiting or state.rhythm.asking

    async def _stay(self, node: Node, state: ServerState, desk: Desk, inbox: Inbox) -> None:
        """Its segment is over: nothing comes that would matter."""

    async def _take_in(self, node: Node, state: ServerState, desk: Desk, peer: str, message: Message) -> None:
        state.furthest = max(state.furthest, furthest_in(message))
        if peer not in desk.members:
            await self._take_from_above(node, state, desk, message)
            return
        if peer in desk.late:
            desk.late.remove(peer)
            self._record(node, state, peer, back=True)
        place = desk.members.index(peer)
        if message.kind == EMPTY:
            await node.send(peer, message)
            return
        state.made = max(state.made, furthest_in(message))
        if message.kind == BACK:
            desk.forget(peer)
            work, step = self.accounts.passes(3), state.furthest
            await node.send(peer, await node.compute(work, self.accounts.reply, state.books, place, message, step))
            return
        last, before = message.kind == "last", [put for who, put in desk.put_by if who == peer]
        if not self.accounts.follows(state.books, place, message, len(before)):
            await node.send(peer, Message(BACK, 0))
            return
        if peer in desk.owed and not last:
            desk.put_by.append((peer, message))
            return
        if last:
            await self._take_back(node, state, place, int(message.numbers[2]), peer in desk.owed)
        for each in [*before, message]:
            work = self.accounts.counting(each, each.kind == "last")
            await node.compute(work, self.accounts.count, state.books, place, each, each.kind == "last")
        if last:
            desk.forget(peer)
            desk.last.add(peer)
            return
        state.reports[place] = [*Report(*message.numbers[2:])]
        desk.owed.add(peer)
        desk.since_s = min(desk.since_s, node.now())

    async def _take_back(self, node: Node, state: ServerState, place: int, settled: int, owed: bool) -> None:
        """A member makes no more steps, and may not have made those that answer a round, or a momentum's last move."""
        books = state.books
        if settled < books.counted[place] - owed:
            state.passed_on = state.passed_on[:1] * 2
        if settled < books.went_on[place]:
            await node.compute(self.accounts.passes(3), self.accounts.take_back, books, self.outer_momentum)

    async def _answer(self, node: Node, state: ServerState, desk: Desk) -> None:
        """Answer all who are owed it once all are there; and again where all have begun a second round."""
        while desk.complete() and self._agreed_above(node, state, desk):
            await self._answer_all(node, state, desk)
            again, desk.put_by = desk.put_by, []
            for peer, message in again:
                await self._take_in(node, state, desk, peer, message)

    async def _answer_all(self, node: Node, state: ServerState, desk: Desk) -> None:
        due = [peer for peer in desk.members if peer in desk.owed]
        state.period = self.period(state)
        places = [desk.members.index(peer) for peer in due]
        first, stream = state.told, self.task.roles.stream_of(node.name)
        state.told += len(due)
        key = Key(self.task.seed, stream, first)
        coarse, momentum = self.coarse_of(map(Report._make, state.reports)), self.momentum(state, places)
        if momentum and not desk.last:
            await node.compute(self.accounts.passes(5), self.accounts.go_on, state.books, places, momentum)
        elif not momentum:
            self.accounts.forget_velocity(state.books)
        answers = await node.compute(self.accounts.answering, self.accounts.answer, state.books, places, key, coarse)
        numbers = [float(state.furthest), float(state.period), self.scale(node.name, state.rhythm), float(coarse)]
        if len(desk.members) == 1 and node.name != node.global_server:
            numbers.append(float(state.rhythm.until))  # there is nothing to average with before
        for number, (alike, buffers) in enumerate(answers, first):
            message = Message("answer", number, buffers, tuple(numbers))
            await node.broadcast([desk.members[place] for place in alike], message)
        desk.owed.difference_update(due)
        state.passed_on = [state.passed_on[1], state.link.closed]
        state.answers += not desk.asked_above
        desk.since_s, desk.asked_above = inf, False

    def _deadline_s(self, state: ServerState, desk: Desk) -> float:
        """Until when who is late is waited for; as long as no round was answered, by what the first took to come."""
        pace_s = max(Report(*report).pace_s for report in state.reports) or desk.since_s - desk.began_s
        return desk.since_s + LATE * pace_s

    def _leave_out_late(self, node: Node, state: ServerState, desk: Desk) -> None:
        for peer in desk.absent():
            desk.late.add(peer)
            self._record(node, state, peer, back=False)
        desk.since_s = inf

    def _record(self, node: Node, state: ServerState, peer: str, back: bool) -> None:
        node.record(Absent(time_s=node.now(), node=node.name, peer=peer, step=state.furthest, back=back))

    # An LPS as a member of the global server's

    def _agreed_above(self, node: Node, state: ServerState, desk: Desk) -> bool:
        """Whether a round above that is to come before the members' answers is over: with `wan` together."""
        if desk.released_s(state, node.now()) < inf:
            return False
        if not self.wan_together or node.name == node.global_server:
            return True
        if not desk.asked_above:
            desk.asked_above, state.answers = True, state.answers + 1
            return not self._due_above(node, state)
        return not state.link.waiting

    def _due_above(self, node: Node, state: ServerState) -> bool:
        """Whether its members have been told of the last answer, and have made the steps to be made since.

        The first answer after it tells them, the second tells that what they have made since is in z.
        """
        told, rhythm = state.answers >= (2 if state.rhythm.rest else 1), state.rhythm
        return told and state.furthest >= rhythm.until and node.now() >= rhythm.answered_s

    def _is_to_send(self, node: Node, state: ServerState, desk: Desk) -> bool:
        """Whether a round with the global server is due: by its rhythm; or with all that waiting members have told."""
        if desk.released_s(state, node.now()) == inf:
            return self._due_above(node, state) and not state.link.waiting
        new = state.made > state.rhythm.began or not state.link.is_under_way
        return desk.complete() and new and not (state.link.asking or len(state.link.behind))

    async def _hold(self, node: Node, state: ServerState, desk: Desk) -> None:
        """Let members wait once they are too far from what the others have heard of."""
        regions = len(self.task.roles.lpss)
        if node.name == node.global_server or not self.stale_batches or desk.mean is not None:
            return
        if self._is_alone(node, state) or state.made - state.rhythm.heard < self.stale_batches * regions:
            desk.held_s = inf
        elif desk.held_s == inf and not desk.last:
            desk.held_s = node.now()
            await node.broadcast([peer for peer in desk.members if peer not in desk.ended], Message(HOLD))

    def _is_alone(self, node: Node, state: ServerState) -> bool:
        """Whether there is no other region to hear of it."""
        return len(self.task.roles.lpss) == 1

    async def _send_above(self, node: Node, state: ServerState, desk: Desk) -> None:
        """Begin a round with the global server, where none is under way, or members wait for one that is."""
        if node.name == node.global_server or desk.told_above or not self._is_to_send(node, state, desk):
            return
        state.answers = 0
        number, behind = state.link.number, state.link.is_under_way
        key = Key(self.task.seed, self.task.roles.stream_of(node.name), number)
        what = state.link, state.books.total, key, self.times(node.name, state.rhythm)
        work = self.accounts.sending_behind if behind else self.accounts.sending
        buffers = await node.compute(work, self.accounts.send, *what)
        state.rhythm.begin(state.furthest, node.now(), behind)
        numbers = (float(state.furthest), float(state.link.number), *self.report(state.link, state.rhythm))
        message = Message("difference", number, buffers, numbers)
        self._opened(node, state, message)
        await node.send(self.above(node), message)

    def _opened(self, node: Node, state: ServerState, message: Message) -> None:
        """A round above begins with this message."""

    async def _take_from_above(self, node: Node, state: ServerState, desk: Desk, message: Message) -> None:
        if message.kind == BACK:
            await self.ask_again(node, state)
            return
        if message.kind == EMPTY:
            state.rhythm.told(node.now())
            return
        await node.compute(self.taking(message), self._take_above, state, message)
        if message.kind == "answer":
            state.link.coarse = bool(message.numbers[3])
            self._heard_above(node, state)
        if message.kind == "mean":
            desk.mean = message
        elif message.kind == CATCH_UP:
            desk.told_above = False

    def _heard_above(self, node: Node, state: ServerState) -> None:
        """The oldest round under way is over."""
        over_s = self._over_s(node, state)
        delay = self._delay_above(state, node.now(), over_s)
        state.rhythm.answer(state.furthest, over_s, self.carried, self.wan_rest, delay)
        if state.rhythm.rest:
            state.answers = 0

    def _over_s(self, node: Node, state: ServerState) -> float:
        """When it is."""
        return node.now()

    def _delay_above(self, state: ServerState, now_s: float, over_s: float) -> int:
        """Steps by which an answer is late for members: those since the round began.

        Apart there are two more, one until a step is known here and one until its maker hears of the answer, or as many
        as a member's round takes. And where that is many, this server hears of steps too seldom to count them.
        """
        began, began_s = state.rhythm.oldest
        heard, period = state.furthest - began, self.period(state)
        known = [report for report in map(Report._make, state.reports) if report.step_s]
        if period:
            steps_s = [report.step_s + report.round_s / period for report in known]
            return heard + (int((over_s - now_s) / mean(steps_s)) if steps_s else 0)
        if not known:
            return heard + 2
        took_s = over_s - began_s + mean(report.round_s for report in known)
        return max(heard + 2, int(took_s / mean(report.step_s for report in known)))

    def _take_above(self, state: ServerState, message: Message) -> None:
        """z is the x of the link above."""
        if message.kind == "mean":
            state.books.total.copy_(self.accounts.take_mean(state.link, message))
        else:
            state.books.total.add_(self.change(state.link, message))

    # The end

    async def send_last(self, node: Node, link: Member, x: torch.Tensor, step: int, settled: int) -> None:
        """Send what the server has not been told yet; `settled`: the latest round that has been rested from."""
        key = Key(self.task.seed, self.task.roles.stream_of(node.name), step)
        buffers = await node.compute(self.accounts.sending_last, self.accounts.send_last, link, x, key, settled)
        await node.send(node.server, Message("last", step, buffers, (float(step), float(link.number), float(settled))))

    async def _end(self, node: Node, state: ServerState, desk: Desk) -> None:
        """All have sent their last: so does an LPS, and the global server tells the mean; that is then passed on."""
        self._tell_the_dead(node, desk)
        if not desk.last or not desk.members_are(desk.last | desk.ended):
            return
        if desk.mean is None and node.name != node.global_server:
            settled = min(state.passed_on[1], state.rhythm.settled(state.link.closed, state.furthest))
            await self._tell_last_above(node, state, desk, settled)
            if desk.mean is None:
                return
        places = [desk.members.index(peer) for peer in desk.members if peer in desk.last]
        if desk.mean is None:
            key = Key(self.task.seed, self.task.roles.stream_of(node.name), state.furthest)
            buffers = await node.compute(self.accounts.closing, self.accounts.close, state.books, places, key)
            desk.mean = Message("mean", state.furthest, buffers, (float(state.furthest),))
        else:
            work = self.accounts.passing_on(desk.mean)
            await node.compute(work, self.accounts.pass_on, state.books, places, desk.mean)
        told, desk.last = desk.last, set()
        await node.broadcast([peer for peer in desk.members if peer in told], desk.mean)

    async def _tell_last_above(self, node: Node, state: ServerState, desk: Desk, settled: int) -> None:
        """Send what is left, once; `settled` as in `send_last`."""
        if not (desk.told_above or state.link.asking or len(state.link.behind)):
            desk.told_above = True
            await self.send_last(node, state.link, state.books.total, state.furthest, settled)

    # Of workers and servers alike

    def change(self, link: Member, message: Message) -> torch.Tensor:
        """What a message moves the x of its link by."""
        match message.kind:
            case "answer":
                return self.accounts.take(link, message)
            case _:
                return self.accounts.settle(link, message)

    def taking(self, message: Message) -> Work:
        """What that is charged."""
        match message.kind:
            case "answer":
                return self.accounts.taking(message)
            case "mean":
                return self.accounts.passing_on(message)
            case _:
                return self.accounts.passes(6)

    # Who was dead

    async def rejoin(self, node: Node, state: Any) -> None:
        """Ask the server above, and let the members ask, what became of rounds under way."""
        if node.name != node.global_server:
            await self.ask_again(node, state)
        await node.broadcast(node.clients, Message(BACK, 0))

    async def ask_again(self, node: Node, state: Any) -> None:
        """Ask the server what became of rounds under way; what else was on its way is given up."""
        state.rhythm.asking, state.rhythm.before = False, []
        await node.send(self.above(node), self.accounts.ask(state.link, node.now()))

    def _tell_the_dead(self, node: Node, desk: Desk) -> None:
        """That the segment is over, where all who cannot be dead have ended it."""
        done, mortal = desk.last | desk.ended, node.mortal.intersection(desk.members)
        if done and not desk.over and (done | mortal).issuperset(desk.members):
            desk.over = True
            for peer in desk.members:
                if peer in mortal - done:
                    node.spawn(node.send(peer, Message(OVER, 0)))
