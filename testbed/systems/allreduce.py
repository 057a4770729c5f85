"""All-reduce: workers sum their gradients among themselves, without a server.

- `allreduce`: one ring over all workers, in the order of the regions, so that each region's links to its neighbours in
  the ring carry it once: what torch's DistributedDataParallel does with gloo, of a gradient that is one bucket.
- `hierarchical-allreduce`: a ring in each region, then one across regions for each chunk, then back: each WAN link
  carries only what its chunk's worker holds.

Both are exact in float32: sums over a ring are in another order than a server's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from testbed.errors import ProtocolError
from testbed.roles.node import Node
from testbed.systems.protocols.base import System, Task
from testbed.systems.protocols.replica import Replica
from testbed.systems.protocols.rings import Ring, RingOptions


class Serverless(System):
    """Replicas at the workers, and neither LPS nor global server; a subclass says how vectors are summed."""

    @abstractmethod
    async def sum(self, node: Node, vector: torch.Tensor, step: int) -> None:
        """Replace `vector` by the sum of all workers'."""

    def initial_state(self, name: str) -> Replica:
        return Replica.of(self.task, self.task.training.optimizer, name == self.task.roles.workers[0])

    async def worker(self, node: Node, state: Replica) -> None:
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            await self.step(node, state, gradient, step)
            node.step_done(step, loss)

    async def step(self, node: Node, state: Replica, gradient: torch.Tensor, step: int) -> None:
        """Update with the mean gradient of all workers."""
        await self.sum(node, gradient, step)
        await node.compute(self.task.update_work, self._update, state, gradient, step, len(self.task.roles.workers))

    def _update(self, state: Replica, total: torch.Tensor, step: int, workers: int) -> None:
        state.update(self.task, total.div_(workers), step, self.task.training.optimizer)

    async def lps(self, node: Node, state: Any) -> None:
        raise ProtocolError(f"{node.name}: {self.name} has no servers")

    global_server = lps

    def models(self, states: Mapping[str, Replica]) -> dict[str, torch.Tensor]:
        return states[self.task.roles.workers[0]].models()


class AllReduce(Serverless):
    name = "allreduce"
    peers = "ring"
    options_type = RingOptions

    def __init__(self, task: Task, options: RingOptions) -> None:
        super().__init__(task, options)
        self.ring = Ring(self, task.roles.workers, slice(0, task.layout.size), options)

    async def sum(self, node: Node, vector: torch.Tensor, step: int) -> None:
        await self.ring.reduce_scatter(node, vector, step)
        await self.ring.all_gather(node, vector, step)


class HierarchicalAllReduce(Serverless):
    name = "hierarchical-allreduce"
    alike = True
    peers = "rings"
    options_type = RingOptions

    def __init__(self, task: Task, options: RingOptions) -> None:
        super().__init__(task, options)
        roles, whole = task.roles, slice(0, task.layout.size)
        inside = [Ring(self, roles.workers_of(region), whole, options) for region in roles.regions]
        self.inside = {worker: ring for ring in inside for worker in ring.members}
        across = [
            Ring(self, [ring.members[k] for ring in inside], inside[0].chunk_of(inside[0].members[k]), options)
            for k in range(roles.workers_per_region)
        ]
        self.across = {worker: ring for ring in across for worker in ring.members}

    @property
    def folds(self) -> bool:
        """Whether one worker of a region can play for all: also only where their chunks are of one length."""
        return super().folds and all(ring.even for ring in self.inside.values())

    async def sum_of_region(self, node: Node, vector: torch.Tensor, step: int) -> None:
        """Replace `vector` by the sum of those of the worker's own region."""
        await self.inside[node.name].reduce_scatter(node, vector, step)
        await self.inside[node.name].all_gather(node, vector, step)

    async def sum(self, node: Node, vector: torch.Tensor, step: int) -> None:
        inside, across = self.inside[node.name], self.across[node.name]
        await inside.reduce_scatter(node, vector, step)
        await across.reduce_scatter(node, vector, step)
        await across.all_gather(node, vector, step)
        await inside.all_gather(node, vector, step)
