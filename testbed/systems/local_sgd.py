"""Local SGD: workers train by themselves and average their weights now and then, in float32 and without a server.

- `local-sgd`: all of them every H = `local_steps` steps, over one ring (Stich, "Local SGD converges fast and
  communicates little", ICLR 2019).
- `hierarchical-local-sgd`: each region's workers every H steps, and in every `rounds`-th such round all, over rings in
  the regions and across them (Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020,
  where it has this name, and they are H and H^b).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch

from testbed.roles.node import Node
from testbed.systems.allreduce import AllReduce, HierarchicalAllReduce, Serverless
from testbed.systems.protocols.base import Knob
from testbed.systems.protocols.regional import means_of
from testbed.systems.protocols.replica import Replica
from testbed.systems.protocols.rings import RingOptions
from testbed.types import Count


class LocalSteps(Serverless):
    """Each worker makes steps of its own; a subclass says when weights are averaged, and among whom."""

    @abstractmethod
    async def average(self, node: Node, weights: torch.Tensor, done: int) -> None:
        """Replace `weights` by a mean of several workers', where it is time after `done` steps."""

    async def step(self, node: Node, state: Replica, gradient: torch.Tensor, step: int) -> None:
        """Update with the worker's own gradient, and average the weights when it is time."""
        await node.compute(self.task.update_work, self._update, state, gradient, step, 1)
        await self.average(node, state.weights, step + 1)

    async def divide(self, node: Node, weights: torch.Tensor, workers: int) -> None:
        """Make the sum of `workers` their mean."""
        await node.compute(self.task.passes(2), weights.div_, workers)

    def initial_state(self, name: str) -> Replica:
        return Replica.of(self.task, self.task.training.optimizer, shown=True)

    def models(self, states: Mapping[str, Replica]) -> dict[str, torch.Tensor]:
        """See `means_of`."""
        return means_of({name: states[name] for name in self.task.roles.workers})


class LocalSGDOptions(RingOptions, frozen=True, forbid_unknown_fields=True):
    """`local_steps`: H, steps from one average to the next; the others are the ring's."""

    local_steps: Count = 20


class LocalSGD(LocalSteps, AllReduce):
    name = "local-sgd"
    options_type = LocalSGDOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"local_steps": Knob(choices=(5, 10, 20, 50))}
    options: LocalSGDOptions

    async def average(self, node: Node, weights: torch.Tensor, done: int) -> None:
        if done % self.options.local_steps == 0:
            await self.sum(node, weights, done - 1)
            await self.divide(node, weights, len(self.task.roles.workers))


class HierarchicalLocalSGDOptions(LocalSGDOptions, frozen=True, forbid_unknown_fields=True):
    """`local_steps`: H, steps from one average of a region to the next; `rounds`: H^b, the last of which is of all."""

    rounds: Count = 10


class HierarchicalLocalSGD(LocalSteps, HierarchicalAllReduce):
    name = "hierarchical-local-sgd"
    options_type = HierarchicalLocalSGDOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"local_steps": Knob(choices=(5, 20, 50, 200))}
    options: HierarchicalLocalSGDOptions

    async def average(self, node: Node, weights: torch.Tensor, done: int) -> None:
        round_, left = divmod(done, self.options.local_steps)
        if left:
            return
        if round_ % self.options.rounds == 0:
            await self.sum(node, weights, done - 1)
            await self.divide(node, weights, len(self.task.roles.workers))
        else:
            await self.sum_of_region(node, weights, done - 1)
            await self.divide(node, weights, self.task.roles.workers_per_region)
