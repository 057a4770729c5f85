"""Whom a server waits for: all its clients, or with a tolerance those that come in time.

A client sends one message a round and waits for one answer. One that is not there in time is left out, and is waited
for no longer; a message of a round that is over says that it is back. It is then told, once the round at hand is
over, what everybody else knows by now ("catch-up"), takes part from the next round on, and what it had sent is lost.
Where a round cannot go on without those that are back, they are told at once and have a part in it.

An answer is to the round that its `step` names: a client takes one of its own round or of a later one (`answered`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from testbed.errors import PeerTimeout
from testbed.message import Message
from testbed.record.events import Absent
from testbed.roles.node import MARKER, Node
from testbed.roles.traits import OVER, Orphaned

CATCH_UP = "catch-up"
BACK = (
    "back"  # of one who was dead: to its server, that it wants to catch up; to its clients, that they are to ask again
)
NEVER = -1  # the step of a message that is of no round
CatchUp = Callable[[int], Awaitable[Message]]  # makes the message for those who are back after a step


@dataclass(frozen=True)
class Tolerance:
    """When a server goes on without some of its clients.

    Parameters
    ----------
    quorum : share of them that must be there
    patience_s : how long the others are waited for once the first is there, seconds on the run's clock
    """

    quorum: float = 0.5
    patience_s: float = 10.0


class Attendance:
    """The clients of one server in one segment of a run, which all begin together.

    Parameters
    ----------
    clients : in a fixed order
    tolerance : None where all are waited for, however long that takes
    catch_up : makes what those are told who are back, with the last step that is in it
    """

    def __init__(self, node: Node, clients: Sequence[str], tolerance: Tolerance | None, catch_up: CatchUp) -> None:
        self._node, self._clients, self._tolerance, self._catch_up = node, clients, tolerance, catch_up
        self.present: Sequence[str] = clients  # who has a part in the round at hand, in the clients' order
        self._left_out: dict[str, int] = {}  # and since which step
        self._back: dict[str, None] = {}  # of those left out the ones that wait for a catch-up
        self._early: dict[str, Message] = {}  # of a later round
        self._ended: set[str] = set()  # whose segment is over: one that went on by itself may be done before its server

    async def collect(self, step: int, first: Message | None = None) -> list[Message]:
        """The messages of the round `step`, of the clients in `present`.

        Where it is the round's second message that is waited for, of those who sent its first, `first` is what that was
        answered with, and is the answer again where one begins the round anew: without it there may be nobody left.
        With a tolerance there may be none, where all the others have ended their segment.
        """
        if self._tolerance is None:
            return await self._node.collect(self._clients)
        found = await self._collect(self._tolerance, step, first)
        self.present = [client for client in self._clients if client in found]
        return [found[client] for client in self.present]

    async def _collect(self, tolerance: Tolerance, step: int, first: Message | None) -> dict[str, Message]:
        node = self._node
        found = {client: self._early.pop(client) for client, it in list(self._early.items()) if it.step == step}
        of = self._clients if first is None else self.present
        awaited = {client for client in of if client not in self._left_out} - self._early.keys()
        quorum = max(1, ceil(tolerance.quorum * len(self._clients))) if first is None else 1
        deadline_s = inf
        reader = node.mailbox.open(self._clients)
        try:
            while len(found) < quorum or awaited - found.keys():
                if self._ended.union(found, self._early).issuperset(self._clients):
                    break  # nobody is left to wait for
                if self._back and len(awaited | found.keys()) < quorum:
                    awaited |= await self._tell(step - 1)
                    continue
                try:
                    client, message = await node.take(reader, deadline_s if len(found) >= quorum else inf)
                except PeerTimeout:
                    break
                if message.kind == MARKER:
                    node.note_marker(client)
                    self._ended.add(client)
                    awaited.discard(client)
                    continue
                if client in awaited and message.step == step:
                    if first is not None and message.kind == first.kind:
                        await node.send(client, first)
                        continue
                    found[client] = message
                    deadline_s = min(deadline_s, node.now() + tolerance.patience_s)
                    continue
                awaited.discard(client)
                found.pop(client, None)
                if message.step > step and client not in self._left_out:
                    self._early[client] = message
                else:
                    self._is_back(client, step)
        finally:
            reader.close()
        for client in self._clients:
            if client in awaited and client not in found:
                self._leave_out(client, step)
        return found

    def _is_back(self, client: str, step: int) -> None:
        self._leave_out(client, step)
        self._back[client] = None

    def _leave_out(self, client: str, step: int) -> None:
        if client not in self._left_out:
            self._left_out[client] = step
            self._node.record(Absent(time_s=self._node.now(), node=self._node.name, peer=client, step=step))

    async def readmit(self, step: int) -> None:
        """The round `step` is over: tell those who are back."""
        if self._back:
            await self._tell(step)

    async def _tell(self, step: int) -> set[str]:
        """Let those catch up with `step` who are back, and wait for them again; who they are."""
        message, back = await self._catch_up(step), [client for client in self._clients if client in self._back]
        for client in back:
            del self._back[client]
        for client in back:
            since = self._left_out.pop(client)
            self._node.record(
                Absent(
                    time_s=self._node.now(),
                    node=self._node.name,
                    peer=client,
                    step=max(step, 0),
                    back=True,
                    missed=max(step + 1 - since, 0),
                    nbytes=message.nbytes,
                )
            )
            await self._node.send(client, message)
        return set(back)

    async def end(self, step: int) -> None:
        """The segment's last round, `step`, is over: let those who come late catch up, so that all stand at its end."""
        if self._tolerance is None:
            return
        for client in self._early:
            self._is_back(client, step)
        await self.readmit(step)
        for client in self._clients:
            if client in self._node.mortal:
                await self._node.send(client, Message(OVER, step))
        async for client, _ in self._node.serve([client for client in self._clients if client not in self._ended]):
            self._is_back(client, step)
            await self._tell(step)


async def answered(node: Node, request: Message, tolerance: Tolerance | None) -> Message:
    """A server's answer to a message of a round, or what lets this role catch up with a later one.

    Raises
    ------
    Orphaned
        There will be none: the server is dead, and the segment over.
    """
    if tolerance is None:
        return await node.recv(node.server)
    reader = node.mailbox.open((node.server,))
    try:
        while True:
            _, answer = await node.take(reader, None)
            if answer.kind == MARKER:
                node.note_marker(node.server)
                raise Orphaned
            if answer.kind == BACK:
                await node.send(node.server, request)
            elif answer.step >= request.step:
                return answer
    finally:
        reader.close()


async def caught_up(node: Node, tolerance: Tolerance | None) -> Message:
    """What a server tells one who was dead."""
    request = Message(BACK, NEVER)
    await node.send(node.server, request)
    while (told := await answered(node, request, tolerance)).kind not in (CATCH_UP, "weights"):
        pass  # the answer to what it had sent when it died
    return told


async def unanswered(node: Node) -> None:
    """Take what a server has sent to a role that waits for nothing any more."""
    async for _ in node.serve((node.server,)):
        pass
