"""The baseline's protocol with any codec on its hops: what most of the literature's systems are.

WeightGrad (KDD 2020), Algorithm 1, without its quantization: every worker sends its gradient to its server, an
LPS sends the sum of its region's over the WAN, the global server sends the mean of all back the same way, and
workers, who keep the parameters, all make the same update. In the flat topology workers send to the global
server at once. A system says with `codec` what each sender's vector is coded with; servers decode, add up in
float32 and code again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.memory import Remembering, adder, remembering
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.roles import kind_of
from testbed.systems.protocols.base import System, Task
from testbed.systems.protocols.coding import EntropyCoding
from testbed.systems.protocols.replica import Replica, ServerState
from testbed.workloads.optimizer import Optimizer

Sender = Literal["worker", "lps", "gs"]
Numbers = tuple[float, ...]
HOPS: tuple[tuple[Sender, str], ...] = (("worker", "gradient"), ("lps", "sum"), ("gs", "mean"))  # who sends which kind


@dataclass
class WorkerState(Replica):
    """A worker's parameters, and its codec's memory."""

    memory: Any = None


class CodecSystem(System):
    """Subclass it in one file of this package: set `name`, give `codec`, and it can be named anywhere.

    A subclass with the option `entropy` sets the attribute of that name.
    """

    alike = True

    def __init__(self, task: Task, options: Any) -> None:
        super().__init__(task, options)
        self.codecs: dict[str, Remembering] = {
            sender: self.coder(remembering(self.codec(sender)), kind) for sender, kind in HOPS
        }
        self.entropy = EntropyCoding(task, "off", {})

    # What a system says

    @abstractmethod
    def codec(self, sender: Sender) -> Codec | Remembering:
        """What codes a worker's gradient, an LPS's sum of its region's, the global server's mean of all."""

    def optimizer(self) -> Optimizer:
        """The update that workers make with the mean."""
        return self.task.training.optimizer

    def report(self, loss: float) -> Numbers:
        """Numbers that ride on a worker's gradient; servers take their mean over all workers."""
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
            state = WorkerState.of(self.task, name, self.optimizer())
            state.memory = memory
            return state
        return ServerState(0, memory, self.start_policy() if kind == "gs" else None)

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            charge = self.task.encoding(self.codecs["worker"])
            buffers = await node.compute(charge, self.encode, node, gradient, step, state.memory)
            message = Message("gradient", step, buffers, self.report(loss))
            await self.entropy.send(node, [node.server], message)
            answer = await node.recv(node.server)
            await node.compute(self._updating(answer), self._update, state, answer, step)
            node.step_done(step, loss)

    async def lps(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            gradients = await node.collect(node.clients)
            total = await node.compute(self._adding(node, gradients), self._merge, node, gradients, step, state)
            await self.entropy.send(node, [node.server], total)
            answer = await node.recv(node.server)
            self.told(state.memory, answer.numbers)
            await node.broadcast(node.clients, answer)

    async def global_server(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            sums = await node.collect(node.clients)
            decision = self.decide(node, state.policy, _mean_numbers(sums), step)
            self.told(state.memory, decision)
            charge = self._adding(node, sums)
            answer = await node.compute(charge, self._answer, node, sums, step, state, decision)
            await self.entropy.send(node, node.clients, answer)

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

    def _updating(self, answer: Message) -> Work:
        """What it takes a worker to decode the mean and to make its update."""
        coding = self.entropy.opening("gs", answer) + self.task.decoding(self.codecs["gs"], answer)
        return coding + self.task.passes(self.optimizer().passes)

    def _merge(self, node: Node, gradients: Sequence[Message], step: int, state: ServerState) -> Message:
        """An LPS's message."""
        buffers = self.encode(node, self.add(node, gradients), step, state.memory)
        return Message("sum", step, buffers, _mean_numbers(gradients))

    def _answer(self, node: Node, sums: Sequence[Message], step: int, state: ServerState, decision: Numbers) -> Message:
        """The global server's message."""
        mean = self.add(node, sums).div_(len(self.task.roles.workers))
        return Message("mean", step, self.encode(node, mean, step, state.memory), decision)

    def _update(self, state: WorkerState, answer: Message, step: int) -> None:
        self.told(state.memory, answer.numbers)
        mean = self.codecs["gs"].decode(self.entropy.opened("gs", answer).buffers)
        state.update(self.task, mean, step, self.optimizer())

    def models(self, states: Mapping[str, WorkerState]) -> dict[str, torch.Tensor]:
        return states[self.task.roles.workers[0]].models()


def _mean_numbers(messages: Sequence[Message]) -> Numbers:
    """Element-wise mean of what rides on the messages; all regions have as many workers."""
    return tuple(sum(column) / len(messages) for column in zip(*(message.numbers for message in messages), strict=True))
