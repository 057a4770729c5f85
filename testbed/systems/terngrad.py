"""TernGrad: ternary gradients up, their integer sum down (Wen et al., NIPS 2017, Algorithm 1 and section 3).

On the tree, every worker's ternary gradient crosses the LAN to its LPS in 1.6 bits an element, the sum of a
region's n workers crosses the WAN in ceil(log2(2n + 1)) bits, and the sum of all N comes back in
ceil(log2(2N + 1)) bits ("parameter localization", 3.1: workers keep the parameters). Sums stay integers
because all workers use the same scale ("scaler sharing", 3.1), which costs a round of messages of its own. In
the flat topology, the paper's own, the global server adds up the workers' messages themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from testbed.codecs import costs
from testbed.codecs.base import Key
from testbed.codecs.floats import Float32
from testbed.codecs.levels import LevelSum
from testbed.codecs.lossless.entropy import EntropyCoded
from testbed.codecs.lossless.planes import coded_levels
from testbed.codecs.ternary import Ternary
from testbed.errors import InputError
from testbed.message import Message
from testbed.roles.attendance import CATCH_UP, Attendance
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.roles import kind_of
from testbed.systems.protocols.base import Options, Task
from testbed.systems.protocols.coding import Choice, EntropyCoding
from testbed.systems.protocols.replica import Replica, ReplicaSystem, ServerState


class TernGradOptions(Options, frozen=True, forbid_unknown_fields=True):
    """The paper's parts, each of which can be turned off.

    Parameters
    ----------
    clip : gradients are clipped to this many standard deviations of their layer (3.3); 0 turns it off
    layerwise : one scale a layer rather than one for the model (3.3)
    share_scales : all workers use the largest scale among them (3.1); without it servers add up and send floats
    localize : the sum of gradients comes back; without it the global server keeps and sends the parameters (3.1)
    float_last : the last layer's gradient stays in float32 (section 4, AlexNet)
    entropy : "on": trits and their sums are entropy coded, some 1.2 bits an element instead of 1.6 from a worker, and
        2.2 instead of 4 for a sum of 4; "auto": where that makes a message's way shorter, coding included
        (`protocols.coding`); "off" as in the paper
    """

    clip: float = 2.5
    layerwise: bool = True
    share_scales: bool = True
    localize: bool = True
    float_last: bool = True
    entropy: Choice = "off"


@dataclass
class GlobalState:
    """The global server's: parameters only where it keeps them (`localize = false`)."""

    step: int
    weights: torch.Tensor | None
    optimizer: Any


class TernGrad(ReplicaSystem):
    name = "terngrad"
    alike = True
    options_type = TernGradOptions
    options: TernGradOptions

    def __init__(self, task: Task, options: TernGradOptions) -> None:
        super().__init__(task, options)
        if self.tolerance is not None and not options.localize:
            raise InputError("terngrad: tolerance: not beside localize = false, where only one server has the weights")
        self.ternary = Ternary(
            task.layout, options.clip or None, layerwise=options.layerwise, float_last=options.float_last
        )
        self.regional = LevelSum(self.ternary, task.roles.workers_per_region)
        self.total = LevelSum(self.ternary, len(task.roles.workers))
        self.floats = self.coder(Float32(task.layout))
        self.trits = costs.Priced(task.layout, "trits summed as levels")
        coders = {
            ("worker", "ternary"): EntropyCoded(self.ternary),
            ("lps", "levels"): coded_levels(self.regional, self.ternary),
            ("gs", "levels"): coded_levels(self.total, self.ternary),
        }
        self.entropy = EntropyCoding(task, options.entropy, coders)
        self.varying |= self.entropy.kinds
        self.ternary, self.regional, self.total = map(self.coder, (self.ternary, self.regional, self.total))

    def initial_state(self, name: str) -> Replica | ServerState | GlobalState:
        if name in self.task.roles.workers:
            return Replica.of(self.task, self.optimizer(), name == self.shown)
        if self.tolerance is not None or name != self.task.roles.global_server:
            return self.server_state(name)
        if self.options.localize:
            return GlobalState(0, None, None)
        weights = self.task.initial.clone()
        return GlobalState(0, weights, self.task.training.optimizer.start(weights))

    async def worker(self, node: Node, state: Replica) -> None:
        index = self.worker_index(node)
        learner = self.task.learner(index)
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            limits = await node.compute(self.task.surveying(self.ternary), self.ternary.limits, gradient)
            scales = limits.scales
            if self.options.share_scales:  # a round trip to the global server and back
                request = Message("scales", step, [scales])
                await node.send(node.server, request)
                answer = await self.answered(node, request)
                if answer.kind == CATCH_UP:
                    await self.settle(node, state, answer, step)
                    continue
                scales = _scales(answer)
            key = Key(self.task.seed, index, step)
            charge = self.task.encoding(self.ternary, surveyed=True)
            buffers = await node.compute(charge, self.ternary.encode, gradient, key, scales, limits)
            request = Message("ternary", step, buffers)
            await self.entropy.send(node, [node.server], request)
            answer = await self.answered(node, request)
            if await self.settle(node, state, answer, step):
                node.step_done(step, loss)
        self.end(node)

    def taking(self, answer: Message) -> Work:
        if answer.kind == "parameters":
            return self.task.decoding(self.floats, answer)
        codec = self.floats if answer.kind == "mean" else self.total
        return self.entropy.opening("gs", answer) + self.task.decoding(codec, answer) + self.task.update_work

    def take(self, replica: Replica, answer: Message, step: int) -> None:
        answer = self.entropy.opened("gs", answer)
        if answer.kind == "parameters":
            replica.weights.copy_(self.floats.decode(answer.buffers))
            replica.average()
            return
        codec = self.total if answer.kind == "levels" else self.floats
        mean = codec.decode(answer.buffers)
        if answer.kind == "levels" and answer.numbers:
            mean.mul_(len(self.task.roles.workers) / answer.numbers[0])  # the codec divides by the number of all
        replica.update(self.task, mean, step, self.optimizer())

    async def lps(self, node: Node, state: ServerState) -> None:
        clients = self.attendance(node, partial(self.catch_up, node, state))
        async for step in node.steps(state):
            answer = await self._pass_scales(node, clients, step) if self.options.share_scales else None
            if answer is None or answer.kind != CATCH_UP:
                gradients = await clients.collect(step, answer)
                total = await node.compute(self._adding("worker", gradients), self._add_ternary, gradients, step)
                await self.entropy.send(node, [node.server], total)
                answer = await self.answered(node, total)
                await node.broadcast(clients.present, answer)
            await self.keep_up(node, state, answer, step)
            await clients.readmit(state.step)
        await clients.end(state.step - 1)
        self.end(node)

    async def _pass_scales(self, node: Node, clients: Attendance, step: int) -> Message:
        """An LPS's part in scaler sharing; what came of it."""
        request = Message("scales", step, [_largest(await clients.collect(step))])
        await node.send(node.server, request)
        answer = await self.answered(node, request)
        await node.broadcast(clients.present, answer)
        return answer

    async def global_server(self, node: Node, state: Any) -> None:
        clients = self.attendance(node, partial(self.catch_up, node, state))
        async for step in node.steps(state):
            scales = None
            if self.options.share_scales:
                scales = Message("scales", step, [_largest(await clients.collect(step))])
                await node.broadcast(clients.present, scales)
            sums = await clients.collect(step, scales)
            sender = kind_of(node.clients[0])
            total = await node.compute(self._adding(sender, sums), self._add_sums, sender, sums, step)
            if not self.options.localize:
                total = await node.compute(self.task.update_work, self._update, state, total, step)
            await self.entropy.send(node, clients.present, total)
            await self.keep_up(node, state, total, step)
            await clients.readmit(state.step)
        await clients.end(state.step - 1)

    def _adding(self, sender: str, messages: Sequence[Message]) -> Callable[[Message], Work]:
        """What it takes a server to add up what it was sent, and to pack the sum."""
        received: Any
        sent: Any
        opening = self.entropy.opening(sender, *messages)
        if self.options.share_scales:
            received, sent = self.trits if sender == "worker" else self.regional, self.total
        else:
            received, sent = self.ternary if sender == "worker" else self.floats, self.floats
        return self.task.encoding(sent, opening + self.task.adding(received, messages))

    def _add_ternary(self, messages: Sequence[Message], step: int) -> Message:
        """The sum of workers' ternary gradients: as levels where scales are shared, else in float32."""
        received = (self.entropy.opened("worker", message).buffers for message in messages)
        count = (float(len(messages)),) if self.tolerance is not None else ()
        if self.options.share_scales:
            levels = self._completed(self.regional, self.regional.sum(received))
            return Message("levels", step, self.regional.encode(levels), count)
        vectors = [self.ternary.decode(buffers) for buffers in received]
        return Message("sum", step, self.floats.encode(_sum(vectors)), count)

    def _add_sums(self, sender: str, messages: Sequence[Message], step: int) -> Message:
        """The sum over all workers; what float32 carries is made the mean here, levels are divided at the worker."""
        flat = sender == "worker"
        buffers = (self.entropy.opened(sender, message).buffers for message in messages)
        present = self.present_in(sender, messages)
        if self.options.share_scales:
            total = self.total.sum(buffers) if flat else self.total.add(map(self.regional.unpack, buffers))
            count = (float(present),) if self.tolerance is not None else ()
            return Message("levels", step, self.total.encode(self._completed(self.total, total)), count)
        codec = self.ternary if flat else self.floats
        vectors = [codec.decode(each) for each in buffers]
        return Message("mean", step, self.floats.encode(_sum(vectors).div_(present)))

    def _completed(self, codec: LevelSum, levels: Any) -> Any:
        """A sum that some may be missing from as one over all."""
        return levels if self.tolerance is None else codec.completed(levels)

    def _update(self, state: GlobalState, mean: Message, step: int) -> Message:
        """Parameters kept at the server: make the update there and send them in float32."""
        assert state.weights is not None and state.optimizer is not None
        codec = self.total if mean.kind == "levels" else self.floats
        vector, rate = codec.decode(mean.buffers), self.task.rate_at(step)
        self.task.training.optimizer.update(state.optimizer, state.weights, vector, rate)
        return Message("parameters", step, self.floats.encode(state.weights))


def _scales(message: Message) -> Any:
    """The scales in a message, where they are."""
    scales = message.buffers[0]
    return scales if isinstance(scales, torch.Tensor) else scales.view(np.float32)


def _largest(messages: Sequence[Message]) -> Any:
    """Element-wise maximum of the scales in `messages`."""
    scales = [_scales(message) for message in messages]
    return torch.stack(scales).amax(0) if isinstance(scales[0], torch.Tensor) else np.max(scales, axis=0)


def _sum(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total.add_(vector)
    return total
