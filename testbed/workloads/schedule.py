"""Learning-rate schedules: pure functions of the step.

Each takes the run's length and the epoch's, so that a schedule written down once fits a run shortened by
`training.steps`: whatever is left out follows the run.
"""

from __future__ import annotations

from math import cos, pi
from typing import Annotated

import msgspec

from testbed.types import Count, Rate


class Constant(msgspec.Struct, tag_field="kind", tag="constant", frozen=True, forbid_unknown_fields=True):
    """The same `rate` at every step."""

    rate: Rate

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """Return the learning rate of `step` (from 0) in a run of `steps`, `epoch_steps` an epoch."""
        return self.rate


class Polynomial(msgspec.Struct, tag_field="kind", tag="polynomial", frozen=True, forbid_unknown_fields=True):
    """`rate * (1 - step / decay_steps) ** power`, and zero from `decay_steps` on (default: the run's steps)."""

    rate: Rate
    power: Rate = 0.5
    decay_steps: Count | None = None

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """Return the learning rate of `step` (from 0) in a run of `steps`, `epoch_steps` an epoch."""
        left = 1 - step / (self.decay_steps or steps)
        return self.rate * max(left, 0.0) ** self.power


class Staircase(msgspec.Struct, tag_field="kind", tag="staircase", frozen=True, forbid_unknown_fields=True):
    """`rate`, multiplied by `factor` after every `every_steps` (default: a third of the run)."""

    rate: Rate
    factor: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    every_steps: Count | None = None

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """Return the learning rate of `step` (from 0) in a run of `steps`, `epoch_steps` an epoch."""
        return self.rate * self.factor ** (step // (self.every_steps or -(-steps // 3)))


class Exponential(msgspec.Struct, tag_field="kind", tag="exponential", frozen=True, forbid_unknown_fields=True):
    """`rate`, multiplied by `factor` after every epoch."""

    rate: Rate
    factor: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.98

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """Return the learning rate of `step` (from 0) in a run of `steps`, `epoch_steps` an epoch."""
        return self.rate * self.factor ** (step // epoch_steps)


class Cosine(msgspec.Struct, tag_field="kind", tag="cosine", frozen=True, forbid_unknown_fields=True):
    """A linear rise to `rate` over `warmup_steps`, then half a cosine down to `final` times it at the run's end.

    Loshchilov & Hutter 2017, "SGDR", eq. 5, without restarts. `warmup_steps` left out: a twentieth of the run.
    """

    rate: Rate
    warmup_steps: Annotated[int, msgspec.Meta(ge=0)] | None = None
    final: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """Return the learning rate of `step` (from 0) in a run of `steps`, `epoch_steps` an epoch."""
        warmup = steps // 20 if self.warmup_steps is None else self.warmup_steps
        if step < warmup:
            return self.rate * (step + 1) / warmup
        done = min((step - warmup) / max(steps - warmup, 1), 1.0)
        return self.rate * (self.final + (1 - self.final) * (1 + cos(pi * done)) / 2)


Schedule = Constant | Polynomial | Staircase | Exponential | Cosine
