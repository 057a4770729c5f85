"""The global server's side of WeightGrad's exchange: rounds, T_local and T_global (KDD 2020, 3.3 and 4.2 c).

A round opens with the first contribution (or when T_global has passed since the last round), asks the other
LPSs for theirs, and closes when all are in or T_global is over. Its mean goes to every LPS, which acknowledges
it. While one has not acknowledged within T_local, whatever goes to the others is held back.

With a tolerance, an LPS that has neither contributed nor acknowledged for `patience_s` is left out: rounds close
without it and nothing is held back for it. What it misses is kept, and sent in one message when it is heard of again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from testbed.message import Message
from testbed.record.events import Absent, Exchange, Guard
from testbed.roles.attendance import CATCH_UP, Tolerance
from testbed.roles.node import Node
from testbed.roles.traits import OVER
from testbed.systems.protocols.base import Task
from testbed.wan.plan import region_of


class Counted(Protocol):
    """State that outlives a segment: rounds opened so far, and when the last one closed."""

    round: int
    last_round_s: float


class Missed:
    """The means that LPSs have missed: of each the sum, and whether its own contribution is in it."""

    def __init__(self, node: Node, task: Task, exchange: Any, floats: Any) -> None:
        self._node, self._task, self._exchange, self._floats = node, task, exchange, floats
        self._sums: dict[str, torch.Tensor] = {}
        self._own: dict[str, float] = {}

    async def keep(self, peer: str, mean: Message) -> None:
        """Keep a mean for `peer`."""
        await self._node.compute(self._task.adding(self._exchange, [mean]), self._add, peer, mean)

    def _add(self, peer: str, mean: Message) -> None:
        vector = self._exchange.decode(mean.buffers)
        before = self._sums.get(peer)
        self._sums[peer] = vector if before is None else before.add_(vector)
        self._own[peer] = max(self._own.get(peer, 0.0), mean.numbers[0])

    async def told(self, peer: str, number: int) -> Message | None:
        """All that is kept for `peer`, in float32, which is then kept no longer; None for nothing."""
        total = self._sums.pop(peer, None)
        if total is None:
            return None
        buffers = await self._node.compute(self._task.encoding(self._floats), self._floats.encode, total)
        return Message(CATCH_UP, number, buffers, (self._own.pop(peer),))


class Rounds:
    """Rounds of one segment. At a boundary none is open and nothing is unacknowledged.

    Parameters
    ----------
    t_local_s, t_global_s : seconds on the run's clock
    average : makes the mean's buffers from the contributions, in LPS order, and the round's number
    tolerance, missed : when an LPS is left out, and what keeps the means for it
    """

    def __init__(
        self,
        node: Node,
        state: Counted,
        t_local_s: float,
        t_global_s: float,
        average: Callable[[Sequence[Message], int], Awaitable[Sequence]],
        tolerance: Tolerance | None = None,
        missed: Missed | None = None,
    ) -> None:
        self._node = node
        self._state = state
        self._t_local_s = t_local_s
        self._t_global_s = t_global_s
        self._average = average
        self._patience_s = None if tolerance is None else tolerance.patience_s
        self._missed = missed
        self._told = False  # those who are dead, that the segment is over
        self._left_out: dict[str, int] = {}  # LPS -> since which round
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
        unheard = [peer for peer in self._left_out if not self._node.all_ended([peer])]
        gone = self._left_out.keys() - set(unheard)
        unacknowledged = any(sent for peer, sent in self._unacknowledged.items() if peer not in gone)
        return bool(self._reason or self._answers or self._held or unheard or unacknowledged)

    def _tell_the_dead(self) -> None:
        """That the segment is over: all who are not left out have ended it."""
        if not self._told:
            self._told = True
            for peer in self._left_out:
                if peer in self._node.mortal:
                    self._node.spawn(self._node.send(peer, Message(OVER, self._state.round)))

    def end(self) -> None:
        self._timer.cancel()

    async def contributed(self, peer: str, message: Message) -> None:
        """A contribution has arrived; its kind says why it was sent."""
        await self._is_back(peer)
        self._contributions[peer] = message
        if not self._reason:
            await self._ask(self._open(message.kind))
        if self._complete():
            await self._answer(*self._close())

    async def acknowledged(self, peer: str) -> None:
        """`peer` has taken a mean in."""
        await self._is_back(peer)
        self._unacknowledged[peer].popleft().cancel()
        if peer in self._overdue and not self._unacknowledged[peer]:
            now_s = self._node.now()
            self._guard("T_local", peer, held_s=now_s - self._overdue.pop(peer))
        await self._release()

    async def _release(self) -> None:
        """Send what has been held back, unless an LPS is still overdue."""
        while self._held and not self._overdue:
            await self._send_now(*self._held.popleft())

    # Opening and closing take effect at once; asking and answering take time, in which anything may arrive.

    def _open(self, reason: str) -> int:
        self._reason = reason
        self._state.round += 1
        self._restart_timer()
        if self._patience_s is not None:
            self._node.call_later(self._patience_s, partial(self._patience_is_over, self._state.round))
        return self._state.round

    async def _ask(self, number: int) -> None:
        for peer in self._node.lpss:
            if peer not in self._contributions and peer not in self._left_out:
                await self._send(peer, Message("request", number))

    def _complete(self) -> bool:
        """Whether all who are not left out have contributed."""
        return self._contributions.keys() >= set(self._node.lpss) - self._left_out.keys()

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
        if peer in self._left_out:
            assert self._missed is not None
            if message.kind == "mean":
                await self._missed.keep(peer, message)
        elif (self._overdue and peer not in self._overdue) or any(peer == to for to, _ in self._held):
            self._held.append((peer, message))
        else:
            await self._send_now(peer, message)

    async def _send_now(self, peer: str, message: Message) -> None:
        if message.kind != "request":
            timer = self._node.call_later(self._t_local_s, partial(self._t_local_is_over, peer))
            self._unacknowledged[peer].append(timer)
            if self._patience_s is not None:
                sent = self._unacknowledged[peer]
                self._node.call_later(self._patience_s, partial(self._unheard, peer, timer, sent))
        await self._node.send(peer, message)

    def _t_local_is_over(self, peer: str) -> None:
        if peer not in self._overdue and peer not in self._left_out:
            self._overdue[peer] = self._node.now()
            self._guard("T_local", peer)

    # Those who are left out

    def _unheard(self, peer: str, timer: asyncio.TimerHandle, sent: deque[asyncio.TimerHandle]) -> None:
        """`peer` has had `patience_s` to acknowledge a mean."""
        if timer in sent and peer not in self._left_out:
            self._leave_out([peer])

    def _patience_is_over(self, number: int) -> None:
        """The LPSs have had `patience_s` to contribute to round `number`."""
        if self._reason and number == self._state.round and self._contributions:
            here = self._contributions.keys() | self._left_out.keys()
            if absent := [peer for peer in self._node.lpss if peer not in here]:
                self._leave_out(absent)

    def _leave_out(self, absent: Sequence[str]) -> None:
        now_s = self._node.now()
        for peer in absent:
            self._left_out[peer] = self._state.round
            self._node.record(Absent(time_s=now_s, node=self._node.name, peer=peer, step=self._state.round))
            if peer in self._overdue:
                self._guard("T_local", peer, held_s=now_s - self._overdue.pop(peer))
        self._node.spawn(self._go_on())

    async def _go_on(self) -> None:
        """Send what those who were left out held up."""
        held, self._held = self._held, deque()
        for peer, message in held:
            await self._send(peer, message)
        if self._reason and self._contributions and self._complete():
            await self._answer(*self._close())

    async def _is_back(self, peer: str) -> None:
        """`peer` is heard of: if it was left out, send it what it has missed."""
        since = self._left_out.pop(peer, None)
        if since is None or self._missed is None:
            return
        number = self._state.round
        caught_up = await self._missed.told(peer, number)
        nbytes = 0 if caught_up is None else caught_up.nbytes
        node = self._node
        node.record(
            Absent(
                time_s=node.now(),
                node=node.name,
                peer=peer,
                step=number,
                back=True,
                missed=number - since,
                nbytes=nbytes,
            )
        )
        if caught_up is not None:
            await self._send(peer, caught_up)

    # Intervals

    def _t_global_is_over(self) -> None:
        """Either a round has waited for too long, or none has been opened for too long.

        Not once all LPSs have ended their segment: they still answer, but no step of theirs waits, and a T_global
        shorter than the round trip would go on opening rounds for ever.
        """
        if self._node.all_ended(self._node.lpss):
            return
        if self._left_out and self._node.all_ended(set(self._node.lpss) - self._left_out.keys()):
            self._tell_the_dead()
            self._restart_timer()
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
