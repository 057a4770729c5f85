"""A worker that keeps the parameters and updates them with the mean gradient that comes back.

Shared by all systems in which gradients travel and parameters stay (baseline, TernGrad's parameter
localization, ...). Where these tolerate that some are missing, every server makes the updates, too, beside its own
work, so that it knows the weights that one who comes back is told.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import torch

from testbed.codecs.floats import Float32
from testbed.message import Message
from testbed.roles.attendance import BACK, CATCH_UP, NEVER, answered, caught_up
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import System, Task
from testbed.workloads.muon import Updater
from testbed.workloads.optimizer import EMA, Optimizer


@dataclass
class ServerState:
    """A server that adds up what it is sent: the memory of its codec, and the state of what decides as it goes."""

    step: int = 0
    memory: Any = None
    policy: Any = None


@dataclass
class Replica:
    """State of a worker. All replicas stay equal, so only the one that is shown keeps the moving average."""

    step: int
    weights: torch.Tensor
    optimizer: Any  # its state
    ema: EMA | None

    @classmethod
    def of(cls, task: Task, optimizer: Updater, shown: bool) -> Self:
        """The state before the first step."""
        weights = task.initial.clone()
        decay = task.training.ema_decay
        ema = EMA.of(weights, decay) if decay is not None and shown else None
        return cls(0, weights, optimizer.start(weights), ema)

    def update(self, task: Task, gradient: torch.Tensor, step: int, optimizer: Updater) -> None:
        """Make the step's update with the mean `gradient`."""
        optimizer.update(self.optimizer, self.weights, gradient, task.rate_at(step))
        self.average()

    def average(self) -> None:
        """Let the moving average, where it is kept, take in the weights."""
        if self.ema is not None:
            self.ema.update(self.weights)

    def models(self) -> dict[str, torch.Tensor]:
        """The weights, and their moving average where it is kept."""
        models = {"full": self.weights}
        if self.ema is not None:
            models["ema"] = self.ema.average
        return models


@dataclass
class KnowingServer(ServerState):
    """A server that knows the weights; its replica's `step` counts the steps that are in them."""

    replica: Replica | None = None


class ReplicaSystem(System):
    """A system whose workers keep the parameters; a subclass adds the roles, and `take` and `taking`."""

    tolerant = True
    returning = ("worker", "lps")
    of_all: ClassVar[tuple[str, ...]] = ("weights", "optimizer")  # the fields that are equal in all replicas

    def __init__(self, task: Task, options: Any) -> None:
        super().__init__(task, options)
        self.carrier = self.coder(Float32(task.layout))  # of what lets others catch up
        self._one: tuple[torch.Tensor, int] | None = None  # the weights of all replicas, and the step that is in them

    def optimizer(self) -> Optimizer:
        """The update that workers make with the mean."""
        return self.task.training.optimizer

    @abstractmethod
    def take(self, replica: Any, answer: Message, step: int) -> None:
        """Make the update of `step` with what has come back."""

    @abstractmethod
    def taking(self, answer: Message) -> Work:
        """What `take` does."""

    def heard(self, replica: Any, answer: Message) -> None:
        """Note what an answer says beside its vector; each replica does, before `take`."""

    def unite(self, states: Mapping[str, Any]) -> None:
        replicas = [states[name] for name in self.task.roles.workers if name in states]
        first, *others = replicas
        if self.tolerance is not None or not all(torch.equal(first.weights, other.weights) for other in others):
            return
        for other in others:
            for name in self.of_all:
                setattr(other, name, getattr(first, name))
        self._one = first.weights, -1

    def _take(self, replica: Any, answer: Message, step: int) -> None:
        """`take`, once where all replicas are one."""
        self.heard(replica, answer)
        if self._one is None or replica.weights is not self._one[0]:
            self.take(replica, answer, step)
        elif step != self._one[1]:
            self.take(replica, answer, step)
            self._one = replica.weights, step
        else:
            replica.average()

    # A replica in a run

    @property
    def shown(self) -> str:
        """Whose replica is the model that is shown: where some may be missing, the global server's."""
        roles = self.task.roles
        return roles.workers[0] if self.tolerance is None else roles.global_server

    def server_state(self, name: str, memory: Any = None, policy: Any = None) -> ServerState:
        """The state that a server starts from."""
        if self.tolerance is None:
            return ServerState(0, memory, policy)
        replica = Replica.of(self.task, self.optimizer(), name == self.shown)
        return KnowingServer(0, memory, policy, replica)

    def models(self, states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        state = states[self.shown]
        replica = state.replica if isinstance(state, KnowingServer) else state
        assert isinstance(replica, Replica)
        return replica.models()

    def present_in(self, sender: str, messages: Sequence[Message]) -> int:
        """How many workers' gradients are in messages; an LPS's says so with its last number where some may miss."""
        if self.tolerance is None:
            return len(self.task.roles.workers)
        return sum(1 if sender == "worker" else round(message.numbers[-1]) for message in messages)

    async def answered(self, node: Node, request: Message) -> Message:
        """What the server answers to a message."""
        return await answered(node, request, self.tolerance)

    async def rejoin(self, node: Node, state: Any) -> None:
        told = await caught_up(node, self.tolerance)
        if isinstance(state, KnowingServer):
            await self.keep_up(node, state, told, told.step)
            await node.broadcast(node.clients, Message(BACK, NEVER))
        else:
            await self.settle(node, state, told, told.step)
        state.step = told.step + 1

    async def settle(self, node: Node, state: Any, answer: Message, step: int) -> bool:
        """Make the step's update, or catch up with a later step; whether the step has counted."""
        if answer.kind != CATCH_UP:
            await node.compute(self.taking(answer), self._take, state, answer, step)
            return True
        await node.compute(self.task.passes(2 * len(answer.buffers)), self._catch_up, state, answer)
        state.step = answer.step
        return False

    async def keep_up(self, node: Node, state: ServerState, answer: Message, step: int) -> None:
        """Let a server know the weights, too, where it has to."""
        if isinstance(state, KnowingServer):
            assert state.replica is not None
            await self.settle(node, state.replica, answer, step)
            state.replica.step = answer.step + 1
            state.step = max(state.step, answer.step)

    async def catch_up(self, node: Node, state: ServerState, step: int) -> Message:
        """The weights at a server, for one who has missed steps."""
        assert isinstance(state, KnowingServer) and state.replica is not None
        charge = self.task.passes(2 * (1 + len(self._vectors)))
        return await node.compute(charge, self._told, state.replica, step)

    # Catching up: the weights, then the optimizer's vectors; its numbers ride on the message

    @cached_property
    def _vectors(self) -> list[str]:
        """The fields of the optimizer's state that are as long as the weights."""
        return [name for name, value in _fields(self.optimizer().start(torch.zeros(1))) if _is_vector(value)]

    def _told(self, replica: Replica, step: int) -> Message:
        vectors = [replica.weights, *(getattr(replica.optimizer, name) for name in self._vectors)]
        numbers = [float(value) for _, value in _fields(replica.optimizer) if not isinstance(value, torch.Tensor)]
        buffers = [buffer for vector in vectors for buffer in self.carrier.encode(vector)]
        return Message(CATCH_UP, step, buffers, tuple(numbers))

    def _catch_up(self, replica: Replica, told: Message) -> None:
        weights, *vectors = (self.carrier.decode([buffer]) for buffer in told.buffers)
        replica.weights.copy_(weights)
        for name, vector in zip(self._vectors, vectors, strict=True):
            getattr(replica.optimizer, name).copy_(vector)
        scalars = [(name, value) for name, value in _fields(replica.optimizer) if not isinstance(value, torch.Tensor)]
        for (name, value), number in zip(scalars, told.numbers, strict=True):
            setattr(replica.optimizer, name, type(value)(number))
        replica.average()


def _fields(state: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(state, field.name)) for field in fields(state)]


def _is_vector(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.numel())
