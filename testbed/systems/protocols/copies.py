"""Copies that train by themselves and meet every so many steps at the global server.

In the tree a copy is a region's, at its LPS, and synchronous inside (`regional`); in the flat topology each worker has
its own. What copies tell the global server, and what they make of its answer, is the system's own part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
    def copy(self) -> Met:
        """The state of a copy before the first step."""

    @abstractmethod
    async def meet(self, node: Node, state: Any, step: int) -> None:
        """A copy's part in a meeting, at the end of `step`; `weights` are then what it goes on with."""

    @abstractmethod
    async def answer(self, node: Node, messages: Sequence[Message], step: int) -> Message:
        """What the global server answers to the messages of all copies."""

    @property
    def holders(self) -> tuple[str, ...]:
        """The roles that have a copy."""
        return self.task.roles.lpss or self.task.roles.workers

    def due(self, step: int) -> bool:
        """Whether copies meet at the end of `step`."""
        return (step + 1) % self.options.local_steps == 0

    def initial_state(self, name: str) -> Met | WorkerState | ServerState:
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
            await node.compute(self.task.update_work, self.apply, state, gradient, step)
            if self.due(step):
                await self.meet(node, state, step)
            node.step_done(step, loss)

    async def lps(self, node: Node, state: Met) -> None:
        async for step in node.steps(state):
            gradients = await node.collect(node.workers)
            await node.compute(self.updating(gradients), self.update, state, gradients, step, len(gradients))
            if self.due(step):
                await self.meet(node, state, step)
            await node.broadcast(node.workers, await self.weights_message(node, state, step))

    async def global_server(self, node: Node, state: ServerState) -> None:
        regions = sorted({region_of(client) for client in node.clients})
        async for step in node.steps(state):
            if self.due(step):
                answer = await self.answer(node, await node.collect(node.clients), step)
                number = step // self.options.local_steps
                node.record(
                    Exchange(time_s=node.now(), node=node.name, round=number, included=regions, reason="interval")
                )
                await node.broadcast(node.clients, answer)

    def models(self, states: Mapping[str, Copy]) -> dict[str, torch.Tensor]:
        """The mean of all copies, of each region's, and of their moving averages where they are kept."""
        copies = [states[name] for name in self.holders]
        models = {"full": torch.stack([copy.weights for copy in copies]).mean(0)}
        if averages := [copy.ema.average for copy in copies if copy.ema is not None]:
            models["ema"] = torch.stack(averages).mean(0)
        for region in self.task.roles.regions if len(self.task.roles.regions) > 1 else ():
            here = [states[name].weights for name in self.holders if region_of(name) == region]
            models[f"full@{region}"] = torch.stack(here).mean(0)
        return models
