"""Servers of links (`servers`) whose two regions tell each other what is new directly, and not the global server.

An LPS begins a round by the same rhythm, and hears of the other's part where it would have had an answer: a round is
over when both parts are there (`pair`), one way after the later of both began. The global server has nothing to do.

A part may come before one's own is sent. That round is over here at once, and at the other one way later; as over it
counts for both from then on, so that who was later rests as long as who was sooner, and sends its next part with it.

A segment does not end with rounds that are over; each tells the other with its first message how much it has heard of,
which shows whether any was lost, and sends no part before it has heard that: what an empty message takes is not to be
measured behind a part. At the end an LPS sends what is left and waits for the same of the other, or for its segment's
end. Who was dead asks the other, and is told a, or how it ended: whoever may die meanwhile says when it knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.codecs.base import Key
from testbed.message import Message
from testbed.roles.attendance import BACK, CATCH_UP
from testbed.roles.node import Node
from testbed.roles.traits import OVER
from testbed.systems.protocols.desk import Desk, Report, ServerState
from testbed.systems.protocols.inbox import Inbox
from testbed.systems.protocols.pair import Pair, Pairing
from testbed.systems.protocols.servers import EMPTY, AveragingServers

ECHO = "echo"  # of the other's empty message
HELD = "held"  # how the run ended is known here, too
UNKNOWN = -1  # how many rounds of the other's one has heard of


@dataclass(kw_only=True)
class PairedState(ServerState):
    """A server's, with what an LPS knows of both regions."""

    pair: Pair
    begun: int = 0  # rounds before this segment
    greeted: bool = False  # whether the other has been heard of in it

    @property
    def patience_s(self) -> float:
        """The other's part may not be under way, and its rest before that."""
        rest_s = self.rhythm.rest * max(Report(*each).step_s for each in self.reports)
        return self.rhythm.round_s and self.rhythm.round_s + rest_s


class PairedServers(AveragingServers):
    """`AveragingServers`, of which two LPSs that are neighbours exchange directly; a subclass adds the worker."""

    pairing: Pairing

    def other(self, name: str) -> str | None:
        """Of an LPS the only other one, where they are neighbours."""
        lpss = self.task.roles.lpss
        if name not in lpss or len(lpss) != 2 or not self.task.roles.mesh:
            return None
        return lpss[1 - lpss.index(name)]

    def above(self, node: Node) -> str:
        return self.other(node.name) or super().above(node)

    def server_state(self, name: str) -> PairedState:
        return PairedState(**vars(super().server_state(name)), pair=self.pairing.pair())

    async def global_server(self, node: Node, state: Any) -> None:
        if not self._is_idle(node):
            await super().global_server(node, state)
        elif node.mortal.intersection(node.clients):  # whom this role's end of the segment would tell that it is over
            async for _ in node.serve(node.clients):
                pass

    def _is_idle(self, node: Node) -> bool:
        """Whether it is a global server that has nothing to do."""
        return any(map(self.other, node.clients))

    async def begin_segment(self, node: Node, state: Any) -> None:
        if not (other := self.other(node.name)):
            await super().begin_segment(node, state)
            return
        state.begun, state.greeted = state.link.number, False
        heard = state.link.closed + len(state.pair.theirs.notes)
        if state.link.asking:  # it was dead, or nobody has answered
            heard = UNKNOWN
            await self.ask_again(node, state)
        state.rhythm.ask(node.now())
        await node.send(other, Message(EMPTY, 0, (), (float(state.furthest), float(heard))))

    def inbox(self, node: Node) -> Inbox:
        other = self.other(node.name)
        return Inbox(node, [other]) if other else super().inbox(node)

    def _awaits(self, node: Node, state: Any, desk: Desk) -> bool:
        if not (other := self.other(node.name)):
            return super()._awaits(node, state, desk)
        unknown = other in node.mortal and desk.mean is not None and not desk.held
        return (state.link.asking or state.rhythm.asking or unknown) and not node.all_ended([other])

    async def _stay(self, node: Node, state: Any, desk: Desk, inbox: Inbox) -> None:
        """Hear what the other still tells, whose segment may last longer, and answer nothing."""
        if not (other := self.other(node.name)):
            return
        state.rhythm.asking, desk.done = False, True

        async def hear() -> None:
            while inbox.items or not node.all_ended([other]):
                arrived = await inbox.next(node, "the other region")
                if arrived is not None:
                    await self._take_in(node, state, desk, *arrived[:2])

        node.spawn_server(hear())

    # Rounds

    def _is_alone(self, node: Node, state: Any) -> bool:
        return self._is_gone(node, state) or super()._is_alone(node, state)

    def _is_gone(self, node: Node, state: Any) -> bool:
        """Whether the other sends no part any more."""
        other = self.other(node.name)
        return other is not None and (state.pair.theirs.has_ended or node.all_ended([other]))

    def _agreed_above(self, node: Node, state: Any, desk: Desk) -> bool:
        agreed = super()._agreed_above(node, state, desk)
        return agreed or (self.wan_together and self._is_gone(node, state))

    def _due_above(self, node: Node, state: Any) -> bool:
        return self._is_to_hear(node, state) and super()._due_above(node, state)

    def _is_to_send(self, node: Node, state: Any, desk: Desk) -> bool:
        return self._is_to_hear(node, state) and super()._is_to_send(node, state, desk)

    def _is_to_hear(self, node: Node, state: Any) -> bool:
        """Whether a part may be sent to the other."""
        return state.greeted or not self.other(node.name)

    def _opened(self, node: Node, state: Any, message: Message) -> None:
        if self.other(node.name):
            self.pairing.hear(state.pair.mine, message)

    async def _send_above(self, node: Node, state: Any, desk: Desk) -> None:
        """And where that ends a round, go on with what waited for it."""
        await super()._send_above(node, state, desk)
        while self.other(node.name) and await self._close(node, state):
            await self._hold(node, state, desk)
            await self._answer(node, state, desk)
            await super()._send_above(node, state, desk)

    async def _close(self, node: Node, state: Any) -> bool:
        """End the rounds that both parts are there of; whether there were any."""
        before = state.link.closed
        while reports := state.pair.reports:
            momentum = self.momentum_by(reports)
            state.link.coarse = self.coarse_of(reports)
            what = state.pair, state.link, momentum
            change = await node.compute(self.pairing.closing(momentum), self.pairing.close, *what)
            state.books.total.add_(change)
            self._heard_above(node, state)
        return bool(state.link.closed > before)

    def _over_s(self, node: Node, state: Any) -> float:
        """Not before its own part is at the other."""
        now_s = super()._over_s(node, state)
        return max(now_s, state.rhythm.oldest[1] + state.rhythm.trip_s) if self.other(node.name) else now_s

    async def _take_from_above(self, node: Node, state: Any, desk: Desk, message: Message) -> None:
        if not (other := self.other(node.name)):
            await super()._take_from_above(node, state, desk, message)
            return
        kind, state.greeted = message.kind, True
        if kind == EMPTY and not desk.done:
            await node.send(other, Message(ECHO))
            if int(message.numbers[1]) not in (state.begun, UNKNOWN) and not state.link.asking:
                await self.ask_again(node, state)
        elif kind == ECHO:
            state.rhythm.told(node.now(), 1 / 2)
        elif kind == BACK and not desk.done:
            await self._tell(node, state, desk, message)
        elif kind == CATCH_UP and state.link.asking:
            desk.told_above = False
            what = state.pair, state.link, message
            state.books.total.add_(await node.compute(self.accounts.passes(6), self.pairing.settle, *what))
        elif kind == HELD:
            desk.held = True
        elif kind == "mean" and desk.mean is None:
            await node.compute(self.accounts.passing_on(message), self.accounts.take_mean, state.link, message)
            self.pairing.forget(state.pair, state.link)
            desk.mean, desk.held = message, True
            await node.send(other, Message(HELD))
        elif kind in ("difference", "last") and not (state.link.asking or desk.mean):
            await self._hear(node, state, desk, message)

    async def _hear(self, node: Node, state: Any, desk: Desk, message: Message) -> None:
        """The other's part of a round, or what it has left at the end."""
        if message.kind == "last":
            await node.compute(self.pairing.hearing(message), self.pairing.hear_last, state.pair.theirs, message)
            if desk.told_above:
                await self._conclude(node, state, desk)
        elif self.pairing.follows(state.pair, state.link, message):
            await node.compute(self.pairing.hearing(message), self.pairing.hear, state.pair.theirs, message)
            await self._close(node, state)
        elif not desk.done:
            await self.ask_again(node, state)

    # The end

    async def _end(self, node: Node, state: Any, desk: Desk) -> None:
        other, done = self.other(node.name), desk.members_are(desk.last | desk.ended)
        if other in node.mortal and done and not (desk.told_other or self._is_gone(node, state)):
            desk.told_other = True
            node.spawn(node.send(other, Message(OVER, 0)))
        await super()._end(node, state, desk)

    async def _tell_last_above(self, node: Node, state: Any, desk: Desk, settled: int) -> None:
        """And where the other has sent the same, or never will, find how it ends."""
        if not (other := self.other(node.name)):
            await super()._tell_last_above(node, state, desk, settled)
            return
        if state.link.asking and not node.all_ended([other]):
            return
        if not desk.told_above:
            key = Key(self.task.seed, self.task.roles.stream_of(node.name), state.furthest)
            desk.told_above = True
            what = state.link, state.books.total, key, settled
            buffers = await node.compute(self.accounts.sending_last, self.pairing.code_last, *what)
            numbers = (float(state.furthest), float(state.link.number), float(settled))
            message = Message("last", key.step, buffers, numbers)
            self.pairing.hear_last(state.pair.mine, message)
            await node.send(other, message)
        if self._is_gone(node, state):
            await self._conclude(node, state, desk)

    async def _conclude(self, node: Node, state: Any, desk: Desk) -> None:
        """What either has sent is here: so is the average."""
        key = Key(self.task.seed, self.task.roles.stream_of(node.name), state.furthest)
        what = state.pair, state.link, self.outer_momentum
        total = await node.compute(self.pairing.ending(), self.pairing.end, *what)
        buffers = await node.compute(self.accounts.coding_mean, self.accounts.code_mean, total, key)
        desk.mean = Message("mean", state.furthest, buffers, (float(state.furthest),))
        self.accounts.take_mean(state.link, desk.mean)
        self.pairing.forget(state.pair, state.link)
        if (other := self.other(node.name)) and (other in node.mortal or node.fate):
            await node.send(other, Message(HELD))

    # Who was dead

    async def rejoin(self, node: Node, state: Any) -> None:
        if self.other(node.name):
            state.link.asking = True  # with which its segment begins
            await node.broadcast(node.clients, Message(BACK, 0))
        elif not self._is_idle(node):
            await super().rejoin(node, state)

    async def _tell(self, node: Node, state: Any, desk: Desk, question: Message) -> None:
        """Answer the other, which was dead, or believes that this one was; who knows less asks."""
        other = self.other(node.name) or ""
        if desk.mean is not None:
            await node.send(other, desk.mean)
            return
        if int(question.numbers[2]) > state.link.closed:
            await self.ask_again(node, state)
            return
        state.rhythm.asking, state.rhythm.before = False, []
        desk.told_above = False
        self.pairing.forget(state.pair, state.link)
        self.pairing.stand(state.pair)
        what = state.link, question, state.furthest
        await node.send(other, await node.compute(self.accounts.passes(3), self.pairing.reply, *what))
