"""Systems in which each region trains a copy of its own: synchronous inside, something cheaper across the WAN.

Inside a region every step is synchronous SGD with the parameters at the LPS: workers send their gradients in
float32, the LPS makes one update with their mean and sends the weights back. What the LPSs then tell each other
is the system's own part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from testbed.codecs.floats import Float32
from testbed.codecs.resident import decoded_once
from testbed.message import Message
from testbed.roles.attendance import answered, caught_up
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import System, Task
from testbed.wan.plan import region_of
from testbed.workloads.optimizer import EMA


@dataclass
class WorkerState:
    """`weights` are those its LPS sent last."""

    step: int
    weights: torch.Tensor


@dataclass
class Copy:
    """A region's copy of the model at its LPS: the part of the state that all these systems share."""

    step: int
    weights: torch.Tensor
    optimizer: Any  # its state
    ema: EMA | None


class RegionalSystem(System):
    """The worker, the LPS's update and the models; a subclass adds `lps` and `global_server`."""

    topologies: ClassVar[tuple[str, ...]] = ("tree",)
    alike = True
    tolerant = True
    returning = ("worker",)

    def __init__(self, task: Task, options: Any) -> None:
        super().__init__(task, options)
        self.floats = self.coder(Float32(task.layout))

    @property
    def holders(self) -> tuple[str, ...]:
        """The roles that have a copy."""
        return self.task.roles.lpss

    @property
    def update_work(self) -> Work:
        """What `apply` does."""
        return self.task.update_work

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            buffers = await node.compute(self.task.encoding(self.floats), self.floats.encode, gradient)
            request = Message("gradient", step, buffers)
            await node.send(node.lps, request)
            answer = await answered(node, request, self.tolerance)
            work = self.task.decoding(self.floats, answer)
            state.weights = await node.compute(work, decoded_once, self.floats, answer.buffers)
            state.step = answer.step
            if answer.step == step:  # else it was too late to count
                node.step_done(step, loss)
        self.end(node)

    async def rejoin(self, node: Node, state: WorkerState) -> None:
        told = await caught_up(node, self.tolerance)
        work = self.task.decoding(self.floats, told)
        state.weights = await node.compute(work, decoded_once, self.floats, told.buffers)
        state.step = told.step + 1

    def copy_parts(self) -> tuple[int, torch.Tensor, Any, EMA | None]:
        """What a `Copy` starts with."""
        weights, training = self.task.initial.clone(), self.task.training
        ema = EMA.of(weights, training.ema_decay) if training.ema_decay is not None else None
        return 0, weights, training.optimizer.start(weights), ema

    def updating(self, gradients: Sequence[Message]) -> Work:
        """What `update` does, the change included: weights are read before and after, and it is written."""
        return self.task.adding(self.floats, gradients) + self.update_work + self.task.passes(2)

    def update(self, state: Copy, gradients: Sequence[Message], step: int, workers: float) -> torch.Tensor:
        """One update with the sum of the region's gradients over `workers`; returns the weights' change."""
        if self.task.timing_only:
            return state.weights
        total = self.floats.decode(gradients[0].buffers)
        for message in gradients[1:]:
            total.add_(self.floats.decode(message.buffers))
        change = state.weights.neg()
        self.apply(state, total.div_(workers), step)
        return change.add_(state.weights)

    def apply(self, state: Copy, gradient: torch.Tensor, step: int) -> None:
        """One update of a copy."""
        self.task.training.optimizer.update(state.optimizer, state.weights, gradient, self.task.rate_at(step))
        if state.ema is not None:
            state.ema.update(state.weights)

    async def weights_message(self, node: Node, state: Copy, step: int) -> Message:
        """What the LPS answers its workers."""
        charge = self.task.encoding(self.floats)
        return Message("weights", step, await node.compute(charge, self.floats.encode, state.weights))

    def models(self, states: Mapping[str, Copy]) -> dict[str, torch.Tensor]:
        """See `means_of`."""
        return means_of({name: states[name] for name in self.holders})


class Copied(Protocol):
    """What trains a copy of its own."""

    weights: torch.Tensor
    ema: EMA | None


def means_of(copies: Mapping[str, Copied]) -> dict[str, torch.Tensor]:
    """The mean of all copies, which are by role, of each region's, and of their moving averages where they are kept."""
    models = {"full": torch.stack([copy.weights for copy in copies.values()]).mean(0)}
    if averages := [copy.ema.average for copy in copies.values() if copy.ema is not None]:
        models["ema"] = torch.stack(averages).mean(0)
    regions = dict.fromkeys(map(region_of, copies))
    for region in regions if len(regions) > 1 else ():
        here = [copy.weights for name, copy in copies.items() if region_of(name) == region]
        models[f"full@{region}"] = torch.stack(here).mean(0)
    return models
