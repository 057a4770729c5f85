"""Delayed aggregation: workers go on, and apply the mean of a step some steps later.

Every worker sends what it makes of its gradient to its server and trains on. LPSs add up what their workers send, the
global server makes the mean of all, and LPSs pass that on as it comes, while the next sums are on their way up. A
worker applies means in the order of their steps, each as soon as it is behind by so many steps as it is to be, and all
of them after the last step. That delay may change as a run goes on: what the global server decides rides on its answer,
and counts for a worker once that answer is applied, so that all workers change it at the same step and stay equal.

Before the first step each worker measures what an empty message and its answer take, through all servers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from testbed.codecs import costs
from testbed.codecs.base import Buffers, Key
from testbed.codecs.memory import adder
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.trail import Signal
from testbed.systems.protocols.base import System
from testbed.systems.protocols.replica import Replica, ServerState

Numbers = tuple[float, ...]


@dataclass
class DelayedState(Replica):
    """A worker's parameters.

    Attributes
    ----------
    means, notes : those that have come and are not applied when no step is under way, [count, layout.size], and of
        each the bytes that it came in and the numbers on it
    applied : steps whose mean is in the weights
    empty_s : what an empty message and its answer take
    """

    means: torch.Tensor
    notes: list[list[float]] = field(default_factory=list)
    applied: int = 0
    empty_s: float = 0.0


@dataclass
class Inbox:
    """Within a segment: when a step's message was sent, and its bytes; what has come for it, its bytes and numbers."""

    sent: dict[int, tuple[float, int]] = field(default_factory=dict)
    came: dict[int, tuple[Message | torch.Tensor, list[float]]] = field(default_factory=dict)
    signals: defaultdict[int, Signal] = field(default_factory=lambda: defaultdict(Signal))


class DelayedSystem(System):
    """Over the servers of the tree or of the flat topology; a subclass says what is sent, and how late means may be.

    Attributes
    ----------
    codecs : of a worker's "gradient", an LPS's "sum" and the global server's "mean"
    """

    codecs: Mapping[str, Any]

    @abstractmethod
    async def code(self, node: Node, state: Any, gradient: torch.Tensor, key: Key) -> Buffers:
        """What a worker sends of a gradient."""

    @abstractmethod
    def report(self, state: Any) -> Numbers:
        """Numbers that ride on a worker's message; servers take the largest of each."""

    @abstractmethod
    def decide(self, state: Any, report: Numbers, step: int) -> Numbers:
        """What the global server answers to the report of a step."""

    @abstractmethod
    def told(self, state: Any, decision: Sequence[float]) -> None:
        """Note at a worker what was decided."""

    @abstractmethod
    def delay(self, state: Any) -> int:
        """By how many steps a worker is to be behind."""

    def measured(self, state: Any, step_s: float) -> None:
        """Note how long a step has taken a worker without its waits."""

    def exchanged(self, state: Any, seconds: float, sent_nbytes: int, nbytes: int) -> None:
        """Note how long a message of so many bytes has taken there and its answer back."""

    async def worker(self, node: Node, state: DelayedState) -> None:
        if state.step == 0:
            state.empty_s -= node.now()
            await node.send(node.server, Message("empty"))
            await node.recv(node.server)
            state.empty_s += node.now()
        learner, inbox = self.task.learner(self.worker_index(node)), self._inbox(state)
        node.spawn(self._receive(node, state, inbox, range(state.step, node.stop_at)))
        async for step in node.steps(state):
            began_s = node.now()
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            buffers = await self.code(node, state, gradient, self._key(node, step))
            spent_s, inbox.sent[step] = node.now() - began_s, (node.now(), costs.size_of(buffers))
            await node.send(node.server, Message("gradient", step, buffers, self.report(state)))
            last = step + 1 == self.task.training.steps
            while state.applied <= step - (0 if last else self.delay(state)):
                await node.wait(inbox.signals[state.applied], "a mean")
                began_s = node.now()
                await self._apply(node, state, inbox)
                spent_s += node.now() - began_s
            self.measured(state, spent_s)
            node.step_done(step, loss)
        await self._put_by(node, state, inbox)

    def _inbox(self, state: DelayedState) -> Inbox:
        """With what was put by when the last segment ended."""
        inbox = Inbox()
        for step, mean, note in zip(range(state.applied, state.step), state.means, state.notes, strict=True):
            inbox.came[step] = mean, note
            inbox.signals[step].set()
        return inbox

    async def _put_by(self, node: Node, state: DelayedState, inbox: Inbox) -> None:
        left = range(state.applied, state.step)
        for step in left:
            await node.wait(inbox.signals[step], "a mean")
        means = [self._decoded(inbox.came[step][0]) for step in left]
        state.means = torch.stack(means) if means else state.weights.new_empty(0)
        state.notes = [inbox.came[step][1] for step in left]

    async def _receive(self, node: Node, state: DelayedState, inbox: Inbox, steps: range) -> None:
        for step in steps:
            answer = await node.recv(node.server)
            nbytes = costs.size_of(answer.buffers)
            sent_s, sent_nbytes = inbox.sent.pop(step)
            inbox.came[step] = answer, [float(nbytes), *answer.numbers]
            self.exchanged(state, node.now() - sent_s, sent_nbytes, nbytes)
            inbox.signals[step].set()

    async def _apply(self, node: Node, state: DelayedState, inbox: Inbox) -> None:
        mean, (nbytes, *decision) = inbox.came.pop(state.applied)
        decoding = costs.decoding(self.codecs["mean"], self.task.layout.size, int(nbytes))
        await node.compute(Work(coding_nbytes=decoding) + self.task.update_work, self._update, state, mean)
        self.told(state, decision)
        state.applied += 1

    def _update(self, state: DelayedState, mean: Message | torch.Tensor) -> None:
        state.update(self.task, self._decoded(mean), state.applied, self.task.training.optimizer)

    def _decoded(self, mean: Message | torch.Tensor) -> torch.Tensor:
        return self.codecs["mean"].decode(mean.buffers) if isinstance(mean, Message) else mean

    async def lps(self, node: Node, state: ServerState) -> None:
        if state.step == 0:
            await node.send(node.server, (await node.collect(node.clients))[0])
            await node.broadcast(node.clients, await node.recv(node.server))
        node.spawn(self._pass_on(node, node.stop_at - state.step))
        async for step in node.steps(state):
            messages = await node.collect(node.clients)
            await node.send(node.server, await self._added(node, "sum", messages, step, self._reported(messages), 1))

    async def _pass_on(self, node: Node, count: int) -> None:
        for _ in range(count):
            await node.broadcast(node.clients, await node.recv(node.server))

    async def global_server(self, node: Node, state: Any) -> None:
        if state.step == 0:
            await node.broadcast(node.clients, (await node.collect(node.clients))[0])
        async for step in node.steps(state):
            messages = await node.collect(node.clients)
            decision = self.decide(state, self._reported(messages), step)
            workers = len(self.task.roles.workers)
            await node.broadcast(node.clients, await self._added(node, "mean", messages, step, decision, workers))

    def _reported(self, messages: Sequence[Message]) -> Numbers:
        return tuple(max(column) for column in zip(*(message.numbers for message in messages), strict=True))

    async def _added(
        self, node: Node, kind: str, messages: Sequence[Message], step: int, numbers: Numbers, over: int
    ) -> Message:
        """The sum of messages divided by `over`."""
        adding = self.task.adding(self.codecs[messages[0].kind], messages)
        charge = self.task.encoding(self.codecs[kind], adding)
        key = self._key(node, step)
        return Message(kind, step, await node.compute(charge, self._sum, kind, messages, key, over), numbers)

    def _sum(self, kind: str, messages: Sequence[Message], key: Key, over: int) -> Buffers:
        codec = self.codecs[messages[0].kind]
        total, add = codec.decode(messages[0].buffers), adder(codec)
        for message in messages[1:]:
            add(message.buffers, total)
        buffers: Buffers = self.codecs[kind].encode(total.div_(over), key)
        return buffers

    def _key(self, node: Node, step: int) -> Key:
        return Key(self.task.seed, self.task.roles.stream_of(node.name), step)

    def models(self, states: Mapping[str, Replica]) -> dict[str, torch.Tensor]:
        return states[self.task.roles.workers[0]].models()
