"""The baseline's protocol with any codec on its hops: what most of the literature's systems are.

WeightGrad (KDD 2020), Algorithm 1, without its quantization: every worker sends its gradient to its server, an
LPS sends the sum of its region's over the WAN, the global server sends the mean of all back the same way, and
workers, who keep the parameters, all make the same update. In the flat topology workers send to the global
server at once. A system says with `codec` what each sender's vector is coded with; servers decode, add up in
float32 and code again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch

from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.memory import Remembering, adder, remembering
from testbed.errors import InputError
from testbed.gpu.moves import read
from testbed.message import Message
from testbed.roles.attendance import CATCH_UP
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.roles import kind_of
from testbed.systems.protocols.base import Task
from testbed.systems.protocols.coding import EntropyCoding
from testbed.systems.protocols.replica import Replica, ReplicaSystem, ServerState

Sender = Literal["worker", "lps", "gs"]
Numbers = tuple[float, ...]
HOPS: tuple[tuple[Sender, str], ...] = (("worker", "gradient"), ("lps", "sum"), ("gs", "mean"))  # who sends which kind


@dataclass
class WorkerState(Replica):
    """A worker's parameters, and its codec's memory."""

    memory: Any = None


class CodecSystem(ReplicaSystem):
    """Subclass it in one file of this package: set `name`, give `codec`, and it can be named anywhere.

    A subclass with the option `entropy` sets the attribute of that name.
    """

    alike = True

    def __init__(self, task: Task, options: Any) -> None:
        super().__init__(task, options)
        self.codecs: dict[str, Remembering] = {
            sender: self.coder(remembering(self._coding(sender)), kind) for sender, kind in HOPS
        }
        self.entropy = EntropyCoding(task, "off", {})

    def _coding(self, sender: Sender) -> Codec | Remembering:
        """What `codec` says of a sender; InputError where it is none."""
        codec = self.codec(sender)
        if missing := [part for part in ("layout", "encode", "decode") if not hasattr(codec, part)]:
            raise InputError(f"{self.name}: codec('{sender}') returned a {type(codec).__name__}, without {missing[0]}")
        return codec

    # What a system says

    @abstractmethod
    def codec(self, sender: Sender) -> Codec | Remembering:
        """What codes a worker's gradient, an LPS's sum of its region's, the global server's mean of all."""

    def report(self, loss: SupportsFloat) -> Numbers:
        """Numbers that ride on a worker's gradient; servers take their mean over all workers.

        Those that are on a device stay there until a server reads them, all of its clients' in one transfer.
        """
        return ()

    def start_policy(self) -> Any:
        """The state of `decide`, a dataclass of tensors and numbers."""
        return None

    def decide(self, node: Node, policy: Any, report: Numbers, step: int) -> Numbers:
        """What the global server makes of the workers' mean `report` of a step; it rides on the answer."""
        return ()

    def told(self, memory: Any, decision: Numbers) -> None:
        """Note the decision in the memory of a sender's codec: at the global server at once, elsewhere on arrival."""

    # The protocol

    def initial_state(self, name: str) -> WorkerState | ServerState:
        kind = kind_of(name)
        memory = self.codecs[kind].start()
        if kind == "worker":
            state = WorkerState.of(self.task, self.optimizer(), name == self.shown)
            state.memory = memory
            return state
        return self.server_state(name, memory, self.start_policy() if kind == "gs" else None)

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            charge = self.task.encoding(self.codecs["worker"])
            buffers = await node.compute(charge, self.encode, node, gradient, step, state.memory)
            message = Message("gradient", step, buffers, self.report(loss))
            await self.entropy.send(node, [node.server], message)
            answer = await self.answered(node, message)
            if await self.settle(node, state, answer, step):
                node.step_done(step, loss)
        self.end(node)

    async def lps(self, node: Node, state: ServerState) -> None:
        clients = self.attendance(node, partial(self.catch_up, node, state))
        async for step in node.steps(state):
            gradients = await clients.collect(step)
            total = await node.compute(self._adding(node, gradients), self._merge, node, gradients, step, state)
            await self.entropy.send(node, [node.server], total)
            answer = await self.answered(node, total)
            if answer.kind != CATCH_UP:
                self.told(state.memory, answer.numbers)
            await node.broadcast(clients.present, answer)
            await self.keep_up(node, state, answer, step)
            await clients.readmit(state.step)
        await clients.end(state.step - 1)
        self.end(node)

    async def global_server(self, node: Node, state: ServerState) -> None:
        clients = self.attendance(node, partial(self.catch_up, node, state))
        async for step in node.steps(state):
            sums = await clients.collect(step)
            decision = self.decide(node, state.policy, self._mean_report(node, sums), step)
            self.told(state.memory, decision)
            charge = self._adding(node, sums)
            answer = await node.compute(charge, self._answer, node, sums, step, state, decision)
            await self.entropy.send(node, clients.present, answer)
            await self.keep_up(node, state, answer, step)
            await clients.readmit(state.step)
        await clients.end(state.step - 1)

    def encode(self, node: Node, vector: torch.Tensor, step: int, memory: Any) -> Buffers:
        """Code a vector as the sender `node` does; its random numbers are keyed by who sends it and the step."""
        stream = self.task.roles.stream_of(node.name)
        return self.codecs[kind_of(node.name)].encode(vector, Key(self.task.seed, stream, step), memory)

    def add(self, node: Node, messages: Sequence[Message]) -> torch.Tensor:
        """The sum of the vectors that the clients of `node` sent, in their order; free to be written to."""
        sender = kind_of(node.clients[0])
        codec = self.codecs[sender]
        total, add = codec.decode(self.entropy.opened(sender, messages[0]).buffers), adder(codec)
        for message in messages[1:]:
            add(self.entropy.opened(sender, message).buffers, total)
        return total

    def _adding(self, node: Node, messages: Sequence[Message]) -> Callable[[Message], Work]:
        """What it takes a server to add up what its clients sent and to code the sum."""
        sender = kind_of(node.clients[0])
        adding = self.entropy.opening(sender, *messages) + self.task.adding(self.codecs[sender], messages)
        return self.task.encoding(self.codecs[kind_of(node.name)], adding)

    def taking(self, answer: Message) -> Work:
        """What it takes to decode the mean and to make the update."""
        coding = self.entropy.opening("gs", answer) + self.task.decoding(self.codecs["gs"], answer)
        return coding + self.task.passes(self.optimizer().passes)

    def _merge(self, node: Node, gradients: Sequence[Message], step: int, state: ServerState) -> Message:
        """An LPS's message."""
        buffers = self.encode(node, self.add(node, gradients), step, state.memory)
        numbers = self._mean_report(node, gradients)
        if self.tolerance is not None:
            numbers = (*numbers, float(len(gradients)))
        return Message("sum", step, buffers, numbers)

    def _answer(self, node: Node, sums: Sequence[Message], step: int, state: ServerState, decision: Numbers) -> Message:
        """The global server's message."""
        mean = self.add(node, sums).div_(self.present_in(kind_of(node.clients[0]), sums))
        return Message("mean", step, self.encode(node, mean, step, state.memory), decision)

    def heard(self, replica: Replica, answer: Message) -> None:
        if isinstance(replica, WorkerState):
            self.told(replica.memory, answer.numbers)

    def take(self, replica: Replica, answer: Message, step: int) -> None:
        mean = self.codecs["gs"].decode(self.entropy.opened("gs", answer).buffers)
        replica.update(self.task, mean, step, self.optimizer())

    def _mean_report(self, node: Node, messages: Sequence[Message]) -> Numbers:
        """Element-wise mean over workers of what they report; all regions have as many, unless some are missing."""
        if self.tolerance is None:
            return tuple(map(_mean, zip(*(message.numbers for message in messages), strict=True)))
        counts = [self.present_in(kind_of(node.clients[0]), [message]) for message in messages]
        reports = [message.numbers[: len(self.report(0.0))] for message in messages]
        columns = zip(*reports, strict=True)
        return tuple(float(np.average(read(*column), weights=counts)) for column in columns)


def _mean(column: Numbers) -> float:
    return sum(read(*column)) / len(column)
