"""The global server's side of WeightGrad's exchange: rounds, T_local and T_global (KDD 2020, 3.3 and 4.2 c).

A round opens with the first contribution (or when T_global has passed since the last round), asks the other
LPSs for theirs, and closes when all are in or T_global is over. Its mean goes to every LPS, which acknowledges
it. While one has not acknowledged within T_local, whatever goes to the others is held back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from testbed.message import Message
from testbed.record.events import Exchange, Guard
from testbed.roles.node import Node
from testbed.wan.plan import region_of


class Counted(Protocol):
    """State that outlives a segment: rounds opened so far, and when the last one closed."""

    round: int
    last_round_s: float


class Rounds:
    """Rounds of one segment. At a boundary none is open and nothing is unacknowledged.

    Parameters
    ----------
    t_local_s, t_global_s : seconds on the run's clock
    average : makes the mean's buffers from the contributions, in LPS order, and the round's number
    """

    def __init__(
        self,
        node: Node,
        state: Counted,
        t_local_s: float,
        t_global_s: float,
        average: Callable[[Sequence[Message], int], Awaitable[Sequence]],
    ) -> None:
        self._node = node
        self._state = state
        self._t_local_s = t_local_s
        self._t_global_s = t_global_s
        self._average = average
        self._contributions: dict[str, Message] = {}
        self._reason = ""  # why the open round was opened; "" when none is
        self._answers = 0  # rounds that are closed, but whose mean has not been sent to all
        self._in_turn = asyncio.Lock()
        self._unacknowledged: dict[str, deque[asyncio.TimerHandle]] = {peer: deque() for peer in node.lpss}
        self._overdue: dict[str, float] = {}  # LPS -> since when T_local is over for it
        self._held: deque[tuple[str, Message]] = deque()
        since_s = node.now() - state.last_round_s
        self._timer = node.call_later(max(t_global_s - since_s, 0.0), self._t_global_is_over)

    def busy(self) -> bool:
        """Whether an LPS still owes or is owed something."""
        return bool(self._reason or self._answers or self._held or any(self._unacknowledged.values()))

    def end(self) -> None:
        self._timer.cancel()

    async def contributed(self, peer: str, message: Message) -> None:
        """A contribution has arrived; its kind says why it was sent."""
        self._contributions[peer] = message
        if not self._reason:
            await self._ask(self._open(message.kind))
        if len(self._contributions) == len(self._node.lpss):
            await self._answer(*self._close())

    async def acknowledged(self, peer: str) -> None:
        """`peer` has taken a mean in."""
        self._unacknowledged[peer].popleft().cancel()
        if peer in self._overdue and not self._unacknowledged[peer]:
            now_s = self._node.now()
            self._guard("T_local", peer, held_s=now_s - self._overdue.pop(peer))
        while self._held and not self._overdue:
            await self._send_now(*self._held.popleft())

    # Opening and closing take effect at once; asking and answering take time, in which anything may arrive.

    def _open(self, reason: str) -> int:
        self._reason = reason
        self._state.round += 1
        self._restart_timer()
        return self._state.round

    async def _ask(self, number: int) -> None:
        for peer in self._node.lpss:
            if peer not in self._contributions:
                await self._send(peer, Message("request", number))

    def _close(self) -> tuple[int, dict[str, Message]]:
        """What arrives from here on belongs to the next round."""
        contributions = {peer: self._contributions[peer] for peer in self._node.lpss if peer in self._contributions}
        number, now_s = self._state.round, self._node.now()
        included = [region_of(peer) for peer in contributions]
        self._node.record(
            Exchange(time_s=now_s, node=self._node.name, round=number, included=included, reason=self._reason)
        )
        self._reason, self._contributions = "", {}
        self._state.last_round_s = now_s
        self._restart_timer()
        self._answers += 1
        return number, contributions

    async def _answer(self, number: int, contributions: dict[str, Message]) -> None:
        """Send the mean to all, one round after the other."""
        async with self._in_turn:
            buffers = await self._average(list(contributions.values()), number)
            for peer in self._node.lpss:
                await self._send(peer, Message("mean", number, buffers, (float(peer in contributions),)))
        self._answers -= 1

    async def _send(self, peer: str, message: Message) -> None:
        if (self._overdue and peer not in self._overdue) or any(peer == to for to, _ in self._held):
            self._held.append((peer, message))
        else:
            await self._send_now(peer, message)

    async def _send_now(self, peer: str, message: Message) -> None:
        if message.kind == "mean":
            timer = self._node.call_later(self._t_local_s, partial(self._t_local_is_over, peer))
            self._unacknowledged[peer].append(timer)
        await self._node.send(peer, message)

    def _t_local_is_over(self, peer: str) -> None:
        if peer not in self._overdue:
            self._overdue[peer] = self._node.now()
            self._guard("T_local", peer)

    def _t_global_is_over(self) -> None:
        """Either a round has waited for too long, or none has been opened for too long.

        Not once all LPSs have ended their segment: they still answer, but no step of theirs waits, and a T_global
        shorter than the round trip would go on opening rounds for ever.
        """
        if self._node.all_ended(self._node.lpss):
            return
        if not self._reason:
            self._node.spawn(self._ask(self._open("t-global")))
        elif self._contributions:
            for peer in self._node.lpss:
                if peer not in self._contributions:
                    self._guard("T_global", peer)
            self._node.spawn(self._answer(*self._close()))
        else:  # asked, and nobody has answered yet: there is nothing to average
            self._restart_timer()

    def _restart_timer(self) -> None:
        self._timer.cancel()
        self._timer = self._node.call_later(self._t_global_s, self._t_global_is_over)

    def _guard(self, guard: str, peer: str, held_s: float | None = None) -> None:
        node = self._node
        node.record(Guard(time_s=node.now(), node=node.name, guard=guard, peer=peer, held_s=held_s))
