"""A worker that keeps the parameters and updates them with the mean gradient that comes back.

Shared by all systems in which gradients travel and parameters stay (baseline, TernGrad's parameter
localization, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch

from testbed.systems.protocols.base import Task
from testbed.workloads.optimizer import EMA, Optimizer


@dataclass
class ServerState:
    """A server that adds up what it is sent: the memory of its codec, and the state of what decides as it goes."""

    step: int = 0
    memory: Any = None
    policy: Any = None


@dataclass
class Replica:
    """State of a worker. All replicas stay equal, so only the run's first worker keeps the moving average."""

    step: int
    weights: torch.Tensor
    optimizer: Any  # its state
    ema: EMA | None

    @classmethod
    def of(cls, task: Task, name: str, optimizer: Optimizer) -> Self:
        """The state before the first step."""
        weights = task.initial.clone()
        decay = task.training.ema_decay
        ema = EMA.of(weights, decay) if decay is not None and name == task.roles.workers[0] else None
        return cls(0, weights, optimizer.start(weights), ema)

    def update(self, task: Task, gradient: torch.Tensor, step: int, optimizer: Optimizer) -> None:
        """Make the step's update with the mean `gradient`."""
        optimizer.update(self.optimizer, self.weights, gradient, task.rate_at(step))
        if self.ema is not None:
            self.ema.update(self.weights)

    def models(self) -> dict[str, torch.Tensor]:
        """The weights, and their moving average where it is kept."""
        models = {"full": self.weights}
        if self.ema is not None:
            models["ema"] = self.ema.average
        return models
