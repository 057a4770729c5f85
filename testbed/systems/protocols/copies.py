"""Copies that train by themselves and meet every so many steps at the global server.

In the tree a copy is a region's, at its LPS, and synchronous inside (`regional`); in the flat topology each worker has
its own. What copies tell the global server, and what they make of its answer, is the system's own part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from testbed.message import Message
from testbed.record.events import Exchange
from testbed.roles.node import Node
from testbed.systems.protocols.base import Options
from testbed.systems.protocols.regional import Copy, RegionalSystem, WorkerState
from testbed.systems.protocols.replica import ServerState
from testbed.types import Count
from testbed.wan.plan import region_of


class CopiesOptions(Options, frozen=True, forbid_unknown_fields=True):
    """`local_steps`: H, steps from one meeting to the next."""

    local_steps: Count = 20


@dataclass
class Met(Copy):
    """A copy, and the parameters that all agreed on when they met last."""

    outer: torch.Tensor


class CopiesSystem(RegionalSystem):
    """A subclass says what a copy starts with, what it sends, what it is answered, and what it makes of that."""

    topologies = ("tree", "flat")
    tolerant = False
    options: CopiesOptions

    @abstractmethod
    def copy(self) -> Copy:
        """The state of a copy before the first step."""

    @abstractmethod
    async def meet(self, node: Node, state: Any, step: int) -> None:
        """A copy's part in a meeting, at the end of `step`; `weights` are then what it goes on with."""

    async def rest(self, node: Node, state: Any) -> None:
        """What is left of a meeting where a segment ends, if training goes on while messages are on their way."""

    @abstractmethod
    async def answers(self, node: Node, messages: Sequence[Message], step: int) -> Sequence[Message]:
        """What the global server answers to the messages of all copies, each: `messages` are in their order."""

    @property
    def holders(self) -> tuple[str, ...]:
        """LPSs, or workers where there are none."""
        return self.task.roles.lpss or self.task.roles.workers

    def due(self, step: int) -> bool:
        """Whether copies meet at the end of `step`."""
        return (step + 1) % self.options.local_steps == 0

    def initial_state(self, name: str) -> Copy | WorkerState | ServerState:
        if name in self.holders:
            return self.copy()
        return WorkerState(0, self.task.initial.clone()) if name in self.task.roles.workers else ServerState()

    async def worker(self, node: Node, state: Any) -> None:
        if node.name not in self.holders:
            await super().worker(node, state)
            return
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            await node.compute(self.update_work, self.apply, state, gradient, step)
            if self.due(step):
                await self.meet(node, state, step)
            node.step_done(step, loss)
        await self.rest(node, state)

    async def lps(self, node: Node, state: Copy) -> None:
        async for step in node.steps(state):
            gradients = await node.collect(node.workers)
            await node.compute(self.updating(gradients), self.update, state, gradients, step, len(gradients))
            if self.due(step):
                await self.meet(node, state, step)
            await node.broadcast(node.workers, await self.weights_message(node, state, step))
        await self.rest(node, state)

    async def global_server(self, node: Node, state: ServerState) -> None:
        regions = sorted({region_of(client) for client in node.clients})
        async for step in node.steps(state):
            if self.due(step):
                answers = await self.answers(node, await node.collect(node.clients), step)
                number = step // self.options.local_steps
                node.record(
                    Exchange(time_s=node.now(), node=node.name, round=number, included=regions, reason="interval")
                )
                for client, answer in zip(node.clients, answers, strict=True):
                    await node.send(client, answer)
