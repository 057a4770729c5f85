"""What a training system is: three roles as coroutines, the states they keep, and the models that result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Protocol

import msgspec
import torch

from testbed.layout import Factors, Layout
from testbed.systems.node import Node, Work
from testbed.wan.plan import Roles, kind_of
from testbed.workloads.config import Training

SYSTEMS: dict[str, type[System]] = {}
"""Every system by the name it has in an experiment file; a module in this package adds its own."""


class Gradients(Protocol):
    """One worker's gradient step, whatever the model and the data."""

    def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
        """Loss and flat gradient at `weights` on this worker's batch of `step`."""

    def factors(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor, list[Factors]]:
        """The same gradient with those of the linear layers as factors: loss, the other layers' flat, (X, Delta)s."""


@dataclass(frozen=True)
class Task:
    """What is trained, the same for every system of an experiment with the same seed.

    Parameters
    ----------
    layout : the model's parameters in the flat vector
    initial : initial weights, flat float32
    training : steps, batch, schedule, optimizer
    learner : makes the learner of worker number k (an index into `roles.workers`)
    images : training images in all, which make an epoch
    gradient_flops : floating-point operations of one worker's gradient
    rate_mbit : what a message alone on the network gets from one host to another, by the profile as it stands at
        step 0; a trace that changes the links later does not change it. Without a profile no link is slow
    seconds : what a computation is charged on the modelled device; None where its time is measured
    """

    seed: int
    roles: Roles
    layout: Layout
    initial: torch.Tensor
    training: Training
    learner: Callable[[int], Gradients]
    images: int
    gradient_flops: float
    rate_mbit: Callable[[str, str], float] = lambda sender, receiver: inf
    seconds: Callable[[Work], float] | None = None

    def rate_at(self, step: int) -> float:
        """The learning rate of `step`, from 0."""
        return self.training.rate_at(step, self.images)

    @property
    def gradient_work(self) -> Work:
        return Work(flops=self.gradient_flops)

    def passes(self, count: float, codec: bool = False) -> Work:
        """Work that goes over a whole float32 parameter vector `count` times; `codec` as in `Work`."""
        return Work(nbytes=4.0 * self.layout.size * count, codec=codec)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system without options; others subclass it."""


class System(ABC):
    """A training system. Subclass it in one file of this package, set `name`, and it can be named anywhere.

    The coroutines keep nothing in local variables from step to step: all of it is in their state, a dataclass
    of tensors and numbers, so that a run can stop at any step boundary and go on from a file.
    """

    name: ClassVar[str] = ""
    options_type: ClassVar[type[Options]] = Options
    topologies: ClassVar[tuple[str, ...]] = ("tree", "flat")  # where it can run
    mesh: ClassVar[bool] = False  # whether its LPSs exchange messages with each other

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            SYSTEMS[cls.name] = cls

    def __init__(self, task: Task, options: Any) -> None:
        self.task = task
        self.options = options

    @abstractmethod
    def initial_state(self, name: str) -> Any:
        """The state that role `name` starts from."""

    @abstractmethod
    async def worker(self, node: Node, state: Any) -> None:
        """A worker machine."""

    @abstractmethod
    async def lps(self, node: Node, state: Any) -> None:
        """The local parameter server of one region."""

    @abstractmethod
    async def global_server(self, node: Node, state: Any) -> None:
        """The global server."""

    @abstractmethod
    def models(self, states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The models to evaluate, by name ("full", "quantized", "ema", each also per "@region"): flat weights.

        `states` holds every role's state; only those looked up are read from disk.
        """

    def role(self, node: Node, state: Any) -> Any:
        """The coroutine of `node`'s role."""
        play = {"worker": self.worker, "lps": self.lps, "gs": self.global_server}[kind_of(node.name)]
        return play(node, state)

    def worker_index(self, node: Node) -> int:
        """The worker's number in the run, which keys its data and its random draws."""
        return self.task.roles.workers.index(node.name)
