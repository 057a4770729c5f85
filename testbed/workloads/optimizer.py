"""Optimizers on flat vectors, gradient clipping, and the moving average of the weights.

An optimizer is a frozen description; what it must remember is a plain dataclass beside the weights, so that a
checkpoint is those dataclasses and nothing else. Updates are in place and, on a CPU, equal torch.optim's to
the last bit. L2 weight decay is not here: it is part of a worker's gradient (`learner.Learner`); AdamW's is.

What a system asks of an optimizer, whichever it is:

- `start` and `update`, and what that costs: `passes`;
- `without_momentum`, for a system that applies momentum before gradients are sent;
- `importance`, where it `has_second_moments`, for one that quantizes weights with regard to what an error in each
  costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import msgspec

from testbed.types import Fraction

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class SGDState:
    """`velocity`: the momentum buffer u of u <- m*u + g; empty (no elements) when the momentum is zero."""

    velocity: Tensor


class SGD(msgspec.Struct, tag_field="kind", tag="sgd", frozen=True, forbid_unknown_fields=True):
    """u <- momentum * u + g; w <- w - rate * u (with `nesterov`: w <- w - rate * (g + momentum * u))."""

    has_second_moments: ClassVar[bool] = False

    momentum: Fraction = 0.0
    nesterov: bool = False

    @property
    def passes(self) -> int:
        """Vectors that an update reads and writes: gradient and weights, and the velocity where there is one."""
        return 5 if self.momentum else 3

    def start(self, weights: Tensor) -> SGDState:
        """Return the state before the first update."""
        return SGDState(weights.new_zeros(weights.shape) if self.momentum else weights.new_empty(0))

    def update(self, state: SGDState, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """Apply one `gradient` to `weights` and `state`, in place."""
        if not self.momentum:
            weights.add_(gradient, alpha=-rate)
            return
        state.velocity.mul_(self.momentum).add_(gradient)
        step = gradient.add(state.velocity, alpha=self.momentum) if self.nesterov else state.velocity
        weights.add_(step, alpha=-rate)

    @property
    def carried(self) -> float:
        """The part of a step's direction that goes on into the next."""
        return self.momentum

    @property
    def without_momentum(self) -> SGD:
        """This optimizer where gradients have their momentum already."""
        return SGD()

    def importance(self, state: SGDState) -> Tensor | None:
        """How much the loss depends on each weight, as far as the optimizer knows; SGD does not."""
        return None


@dataclass
class AdamState:
    """Moving averages of the gradient and of its square, and the number of updates made."""

    first: Tensor
    second: Tensor
    updates: int = 0


class Adam(msgspec.Struct, tag_field="kind", tag="adam", frozen=True, forbid_unknown_fields=True):
    """Adam with bias correction (Kingma & Ba 2015, Algorithm 1)."""

    has_second_moments: ClassVar[bool] = True

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1e-8

    @property
    def passes(self) -> int:
        """As SGD's, with two moments."""
        return 7

    def start(self, weights: Tensor) -> AdamState:
        """Return the state before the first update."""
        return AdamState(weights.new_zeros(weights.shape), weights.new_zeros(weights.shape))

    def update(self, state: AdamState, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """Apply one `gradient` to `weights` and `state`, in place."""
        state.updates += 1
        state.first.lerp_(gradient, 1 - self.beta1)
        state.second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        scale = sqrt(1 - self.beta2**state.updates)
        denominator = (state.second.sqrt() / scale).add_(self.epsilon)
        weights.addcdiv_(state.first, denominator, value=-rate / (1 - self.beta1**state.updates))

    @property
    def carried(self) -> float:
        """As SGD's."""
        return self.beta1

    @property
    def without_momentum(self) -> Self:
        """Itself: its first moment normalises a step as much as it carries one on."""
        return self

    def importance(self, state: AdamState) -> Tensor | None:
        """The root of the second moments, which approximate the loss's curvature; None before the first update."""
        return state.second.sqrt() if state.updates else None


class AdamW(Adam, tag="adamw", frozen=True, forbid_unknown_fields=True):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2): w <- w - rate * weight_decay * w.

    Every parameter decays, biases and normalisations too, as with torch.optim.AdamW given all parameters.
    """

    weight_decay: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01

    def update(self, state: AdamState, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """Apply the decay and one `gradient` to `weights` and `state`, in place."""
        weights.mul_(1 - rate * self.weight_decay)
        super().update(state, weights, gradient, rate)


Optimizer = SGD | Adam | AdamW
OptimizerState = SGDState | AdamState


def clip_global_norm(gradient: Tensor, limit: float) -> float:
    """Scale `gradient` in place so that its L2 norm is at most `limit`; return the norm it had.

    Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", Algorithm 1.
    """
    from torch import linalg  # here, so that reading an experiment file needs no torch

    norm = float(linalg.vector_norm(gradient))
    if norm > limit:
        gradient.mul_(limit / norm)
    return norm


@dataclass
class EMA:
    """Exponential moving average of the weights, to be evaluated beside them.

    The decay of update n (from 0) is min(decay, (1 + n) / (10 + n)), TensorFlow's `num_updates` correction, so
    that the average is not held back by the initial weights in a short run.
    """

    average: Tensor
    decay: float = 0.9999
    updates: int = 0

    @classmethod
    def of(cls, weights: Tensor, decay: float = 0.9999) -> EMA:
        """Start the average at `weights` (copied)."""
        return cls(weights.clone(), decay)

    def update(self, weights: Tensor) -> None:
        """Move the average towards `weights`, in place."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.average.lerp_(weights, 1 - decay)
        self.updates += 1
