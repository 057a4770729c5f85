"""Gaia: regions send each other what has become significant, and nothing else (Hsieh et al., NSDI 2017).

For deep networks as in Hsieh et al., "The Non-IID Data Quagmire of Decentralized Machine Learning" (ICML 2020):
an LPS makes its region's update, adds it to `v`, what it has not told yet, and sends every element with
|v_j / w_j| > T to all other LPSs, who add it to their copies. There is no global server. Decisions where the
papers leave a choice:

1. A region's gradient is the sum of its workers' over the number of all workers, so that with T = 0 and no delay
   all copies make the baseline's step. Adam's step is as long whatever its gradient is multiplied by: of that a region
   makes, and tells, as large a part as it is of all.
2. T falls as T0 / sqrt(t), t the step from 1, or in step with the learning rate, or not at all (`decay`). An
   element of w that is 0 makes any update of it significant.
3. Updates to one LPS leave one after the other, each acknowledged before the next: what waits is in `Outbox`.
4. Selective barrier (ASP, NSDI 2017, 4.3): when the oldest waiting update has waited for more than `barrier_s`,
   the indexes of all that waits are sent ahead of it. The receiver must not let its workers read these
   parameters before the updates are in; as a worker reads the whole model at every step, its LPS holds its answer.
5. Mirror clock (ASP): every step an LPS tells the others its step; one that is more than `clock_steps` ahead of
   the slowest waits.
6. Tolerance: a region that nothing has been heard of for `patience_s` when it is waited for is left out: neither the
   clock nor the barrier waits for it until it is heard of again. It trains on by itself; what has waited on the way to
   it and from it comes in its turn, and its clock says how far it is behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from testbed.codecs.base import Key
from testbed.codecs.sized import Sized
from testbed.codecs.sparse import Sparse
from testbed.message import Message
from testbed.record.events import Absent, Guard
from testbed.roles.attendance import Tolerance
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.traits import OVER
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.regional import Copy, RegionalSystem, WorkerState
from testbed.workloads.optimizer import SGD


class GaiaOptions(Options, frozen=True, forbid_unknown_fields=True):
    """Gaia's settings.

    Parameters
    ----------
    threshold : T0, the relative change of a parameter that is significant (the papers use 0.01 and up to 0.1)
    decay : how T falls, see the module's rule 2
    barrier_s : seconds on the run's clock that updates may wait before the selective barrier; None: no barrier
    clock_steps : how far an LPS may be ahead of the slowest; None: no mirror clock
    """

    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    decay: Literal["sqrt", "rate", "none"] = "sqrt"
    barrier_s: Annotated[float, msgspec.Meta(gt=0)] | None = 2.0
    clock_steps: Annotated[int, msgspec.Meta(ge=1)] | None = 10


@dataclass
class LPSState(Copy):
    """`untold` is v: what this copy has changed by itself and not yet sent."""

    untold: torch.Tensor


@dataclass
class GlobalState:
    """Gaia's has nothing to do."""

    step: int = 0


@dataclass
class Outbox:
    """Updates that wait for their turn on the way to one LPS, with the time each began to wait."""

    waiting: deque[tuple[float, Message]] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    announced: int = -1  # step of the newest update whose indexes were sent ahead
    posted: deque[Message] = field(default_factory=deque)  # what else is on its way to a queue that may be full
    posting: bool = False


@dataclass
class Mirror:
    """What an LPS knows of another: its step, the update it announced, and the newest that has arrived.

    `heard_s` is when anything came from it last. Where it is `left_out` nothing waits for it.
    """

    clock: int
    heard_s: float
    left_out: bool = False
    announced: int = -1
    arrived: int = -1
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def is_owed(self) -> bool:
        """Whether an announced update has not arrived."""
        return self.arrived < self.announced

    async def change(self, node: Node, peer: str, tolerance: Tolerance | None) -> None:
        """Wait until more is known; with a tolerance, until nothing has been heard for too long."""
        self.changed.clear()
        if tolerance is None:
            await node.wait(self.changed, f"{peer}, which is behind")
            return
        try:
            async with node.timeout(max(self.heard_s + tolerance.patience_s - node.now(), 0.0)):
                await self.changed.wait()
        except TimeoutError:
            self.left_out = True
            node.record(Absent(time_s=node.now(), node=node.name, peer=peer, step=self.clock))

    def hear(self, node: Node, peer: str, outbox: Outbox, clock: int) -> None:
        """Something has come from it."""
        self.heard_s = node.now()
        if self.left_out:
            self.left_out = False
            missed, nbytes = clock - self.clock, sum(update.nbytes for _, update in outbox.waiting)
            back = Absent(
                time_s=node.now(), node=node.name, peer=peer, step=clock, back=True, missed=missed, nbytes=nbytes
            )
            node.record(back)


class Gaia(RegionalSystem):
    name = "gaia"
    options_type = GaiaOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"threshold": Knob(low=0.001, high=0.1)}
    options: GaiaOptions

    @classmethod
    def is_mesh(cls, options: GaiaOptions, regions: int) -> bool:
        return True

    def __init__(self, task: Task, options: GaiaOptions) -> None:
        super().__init__(task, options)
        self.sparse = self.coder(Sparse(task.layout), "update")

    def initial_state(self, name: str) -> WorkerState | LPSState | GlobalState:
        if name in self.task.roles.workers:
            return WorkerState(0, self.task.initial.clone())
        if name == self.task.roles.global_server:
            return GlobalState()
        return LPSState(*self.copy_parts(), untold=torch.zeros_like(self.task.initial))

    async def global_server(self, node: Node, state: GlobalState) -> None:
        async for _ in node.steps(state):
            pass

    async def lps(self, node: Node, state: LPSState) -> None:
        peers = [lps for lps in node.lpss if lps != node.name]
        outboxes = {peer: Outbox() for peer in peers}
        mirrors = {peer: Mirror(state.step, node.now()) for peer in peers}
        if peers:
            node.spawn_server(self._receive(node, state, outboxes, mirrors))
        clients = self.attendance(node, partial(self.weights_message, node, state))
        async for step in node.steps(state):
            gradients = await clients.collect(step)
            update = await node.compute(self._stepping(gradients), self._step, node, state, gradients, step)
            for peer in peers:
                await self._post(node, peer, outboxes[peer], Message("clock", step + 1))
                if update is not None:
                    self._enqueue(node, peer, outboxes[peer], update)
                await self._announce(node, peer, outboxes[peer])
            await self._barrier(node, mirrors)
            await self._mirror_clock(node, mirrors, step + 1)
            await node.broadcast(clients.present, await self.weights_message(node, state, step))
            await clients.readmit(step)
        await clients.end(state.step - 1)
        for peer in peers:
            if peer in node.mortal:
                await node.send(peer, Message(OVER, state.step))

    def _stepping(self, gradients: Sequence[Message]) -> Callable[[Message | None], Work]:
        """What `_step` does: the update, adding it to v (3 passes), telling what is significant (4), coding that."""
        return self.task.encoding(self.sparse, self.updating(gradients) + self.task.passes(3 + 4))

    def _step(self, node: Node, state: LPSState, gradients: list[Message], step: int) -> Message | None:
        """The region's update; what of it (and of earlier ones) has become significant, as a message."""
        share = len(gradients) / len(node.workers)  # of the region's workers
        state.untold.add_(self.update(state, gradients, step, len(self.task.roles.workers) * share))
        if self.task.timing_only:
            buffers = self.sparse.encode(state.untold, Key(self.task.seed, self.task.roles.stream_of(node.name), step))
            return Message("update", step, buffers) if buffers else None
        threshold = self._threshold(step)
        told = torch.where(state.untold.abs() > threshold * state.weights.abs(), state.untold, 0.0)
        state.untold.sub_(told)
        return Message("update", step, self.sparse.encode(told)) if bool(told.any()) else None

    @property
    def update_work(self) -> Work:
        return self.task.update_work if self._adds_up else self.task.update_work + self.task.passes(5)

    @property
    def _adds_up(self) -> bool:
        """Whether steps with parts of a gradient add up to the step with all of it."""
        return isinstance(self.task.training.optimizer, SGD)

    def apply(self, state: Copy, gradient: torch.Tensor, step: int) -> None:
        """The region's part of an update of all."""
        if self._adds_up:
            super().apply(state, gradient, step)
            return
        regions, before = len(self.task.roles.lpss), state.weights.clone()
        optimizer, rate = self.task.training.optimizer, self.task.rate_at(step)
        optimizer.update(state.optimizer, state.weights, gradient.mul_(regions), rate)
        state.weights.lerp_(before, 1 - 1 / regions)
        if state.ema is not None:
            state.ema.update(state.weights)

    def _threshold(self, step: int) -> float:
        """T of a step."""
        initial = self.options.threshold
        match self.options.decay:
            case "sqrt":
                return initial / sqrt(step + 1)
            case "rate":
                return initial * self.task.rate_at(step) / self.task.training.schedule.rate
            case _:
                return initial

    # Sending

    def _enqueue(self, node: Node, peer: str, outbox: Outbox, update: Message) -> None:
        idle = not outbox.waiting
        outbox.waiting.append((node.now(), update))
        if idle:
            node.spawn(self._send_in_turn(node, peer, outbox))

    async def _send_in_turn(self, node: Node, peer: str, outbox: Outbox) -> None:
        """Empty an outbox; an update leaves it once it is acknowledged."""
        while outbox.waiting:
            outbox.acknowledged.clear()
            await node.send(peer, outbox.waiting[0][1])
            if self.tolerance is None:
                await node.wait(outbox.acknowledged, f"{peer} to acknowledge an update")
            elif not await self._acknowledged(node, peer, outbox, self.tolerance.patience_s):
                outbox.waiting.clear()
                return
            outbox.waiting.popleft()

    async def _acknowledged(self, node: Node, peer: str, outbox: Outbox, look_s: float) -> bool:
        """Wait for an acknowledgement, unless the peer is dead and the segment over."""
        while not outbox.acknowledged.is_set():
            with suppress(TimeoutError):
                async with node.timeout(look_s):
                    await outbox.acknowledged.wait()
            if peer in node.mortal and node.all_ended([peer]):
                return outbox.acknowledged.is_set()
        return True

    async def _announce(self, node: Node, peer: str, outbox: Outbox) -> None:
        """The sender's side of the selective barrier: the indexes of what has waited for too long go ahead."""
        bound_s = self.options.barrier_s
        if bound_s is None or not outbox.waiting or node.now() - outbox.waiting[0][0] <= bound_s:
            return
        late = [update for _, update in outbox.waiting if update.step > outbox.announced]
        if late:
            charge = self.task.encoding(self.sparse, self.task.adding(self.sparse, late))
            indexes = await node.compute(charge, self._indexes, late)
            outbox.announced = late[-1].step
            await self._post(node, peer, outbox, Message("indexes", outbox.announced, indexes))

    async def _post(self, node: Node, peer: str, outbox: Outbox, message: Message) -> None:
        """Send what is no update; with a tolerance in the background, or the queue to one who is gone would stop all.

        Of the clocks that wait there only the last one matters.
        """
        if self.tolerance is None:
            await node.send(peer, message)
            return
        if message.kind == "clock" and outbox.posted and outbox.posted[-1].kind == "clock":
            outbox.posted.pop()
        outbox.posted.append(message)
        if not outbox.posting:
            outbox.posting = True
            node.spawn(self._send_posted(node, peer, outbox))

    async def _send_posted(self, node: Node, peer: str, outbox: Outbox) -> None:
        while outbox.posted:
            await node.send(peer, outbox.posted.popleft())
        outbox.posting = False

    def _indexes(self, updates: list[Message]) -> list[Any]:
        """Which parameters the updates change: a sparse message without its values."""
        if self.task.timing_only:  # as if no two changed the same
            return [Sized(sum(update.buffers[k].nbytes for update in updates)) for k in range(2)]
        changed = torch.zeros_like(self.task.initial)
        for update in updates:
            changed.add_(self.sparse.decode(update.buffers).abs())
        return list(self.sparse.encode(changed)[:2])

    # Receiving

    async def _receive(
        self, node: Node, state: LPSState, outboxes: dict[str, Outbox], mirrors: dict[str, Mirror]
    ) -> None:
        # Acknowledgements come until this role has sent its last update, however long the others have been ready.
        async for peer, message in node.serve(list(mirrors), lambda: not node.at_rest):
            mirror = mirrors[peer]
            mirror.hear(node, peer, outboxes[peer], state.step)
            match message.kind:
                case "ack":
                    outboxes[peer].acknowledged.set()
                    continue
                case "clock":
                    mirror.clock = message.step
                case "indexes":
                    mirror.announced = message.step
                case _:
                    work = self.task.adding(self.sparse, [message])
                    await node.compute(work, self._take, state, message)
                    mirror.arrived = message.step
                    await self._post(node, peer, outboxes[peer], Message("ack", message.step))
            mirror.changed.set()

    def _take(self, state: LPSState, update: Message) -> None:
        state.weights.add_(self.sparse.decode(update.buffers))

    # Guards

    async def _barrier(self, node: Node, mirrors: dict[str, Mirror]) -> None:
        """Hold the answer to the workers while announced updates are on their way."""
        for peer, mirror in mirrors.items():
            with _held(node, "barrier", peer, mirror.is_owed() and not mirror.left_out):
                while mirror.is_owed() and not mirror.left_out:
                    await mirror.change(node, peer, self.tolerance)

    async def _mirror_clock(self, node: Node, mirrors: dict[str, Mirror], clock: int) -> None:
        """Wait while the slowest is more than `clock_steps` behind."""
        if self.options.clock_steps is None:
            return
        earliest = clock - self.options.clock_steps
        for peer, mirror in mirrors.items():
            with _held(node, "clock", peer, mirror.clock < earliest and not mirror.left_out):
                while mirror.clock < earliest and not mirror.left_out:
                    await mirror.change(node, peer, self.tolerance)


@contextmanager
def _held(node: Node, guard: str, peer: str, applies: bool) -> Iterator[None]:
    """Record the time that a guard which applies takes."""
    if not applies:
        yield
        return
    since_s = node.now()
    node.record(Guard(time_s=since_s, node=node.name, guard=guard, peer=peer))
    yield
    node.record(Guard(time_s=node.now(), node=node.name, guard=guard, peer=peer, held_s=node.now() - since_s))
