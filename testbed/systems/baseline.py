"""Baseline: synchronous SGD through the parameter servers in float32.

WeightGrad (KDD 2020), Algorithm 1, without its quantization. Every worker sends its gradient to its LPS, the
LPS sends the sum of its region's over the WAN, the global server sends the mean of all back the same way.
Workers keep the parameters and all make the same update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from testbed.codecs.floats import Float32
from testbed.message import Message
from testbed.systems.base import Options, System, Task
from testbed.systems.node import Node
from testbed.systems.replica import Replica, ServerState


class Baseline(System):
    name = "baseline"

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        self.codec = Float32(task.layout)

    def initial_state(self, name: str) -> Replica | ServerState:
        return Replica.of(self.task, name) if name in self.task.roles.workers else ServerState()

    async def worker(self, node: Node, state: Replica) -> None:
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            await node.send(node.lps, Message("gradient", step, self.codec.encode(gradient)))
            mean = self.codec.decode((await node.recv(node.lps)).buffers)
            await node.compute(self.task.passes(3), state.update, self.task, mean, step)
            node.step_done(step, loss)

    async def lps(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            gradients = await node.collect(node.workers)
            total = await node.compute(self.task.passes(3 * len(gradients)), self.add, gradients)
            await node.send(node.global_server, Message("sum", step, self.codec.encode(total)))
            mean = await node.recv(node.global_server)
            await node.broadcast(node.workers, mean)

    async def global_server(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            sums = await node.collect(node.lpss)
            total = await node.compute(self.task.passes(3 * len(sums)), self.add, sums)
            mean = total.div_(len(self.task.roles.workers))
            await node.broadcast(node.lpss, Message("mean", step, self.codec.encode(mean)))

    def add(self, messages: Sequence[Message]) -> torch.Tensor:
        """The sum of the vectors in `messages`, in their order."""
        first, *others = (self.codec.decode(message.buffers) for message in messages)
        total = first.clone()
        for vector in others:
            total.add_(vector)
        return total

    def models(self, states: Mapping[str, Replica]) -> dict[str, torch.Tensor]:
        return states[self.task.roles.workers[0]].models()
