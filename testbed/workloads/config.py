"""The experiment file's `[training]` part: strict types with their ranges.

msgspec reports a wrong key, type or range with the key's path; what spans several keys is checked in
`__post_init__` (a ValueError there gets the path too).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.errors import InputError
from testbed.types import Count, Fraction, Rate
from testbed.workloads.optimizer import SGD, AdamW, Optimizer
from testbed.workloads.schedule import Polynomial, Schedule


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is trained; the same for every system of an experiment unless its options say otherwise.

    Attributes
    ----------
    steps
        Global steps of the run.
    batch_size
        Examples in one global step, over all workers.
    schedule, optimizer
        Chosen by their `kind`.
    weight_decay
        L2 decay, as torch.optim.SGD's `weight_decay`; AdamW has one of its own, decoupled.
    clip_norm
        Bound on the L2 norm of one worker's gradient; left out: no bound.
    ema_decay
        Decay of the moving average of the weights (0.9999 is usual); left out: no average is kept.
    augment
        Whether training examples are distorted, as their data set does.
    """

    steps: Count = 400
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 128
    schedule: Schedule = msgspec.field(default_factory=lambda: Polynomial(rate=0.1))
    optimizer: Optimizer = SGD()
    weight_decay: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    clip_norm: Rate | None = None
    ema_decay: Fraction | None = None
    augment: bool = True

    def __post_init__(self) -> None:
        if self.weight_decay and isinstance(self.optimizer, AdamW):
            raise ValueError("weight_decay: it goes into the gradient; AdamW has optimizer.weight_decay in its place")

    def with_own(self, rate: float | None, momentum: float | None) -> Training:
        """This with a system's own rate and momentum, where it has them.

        Raises
        ------
        InputError
            The optimizer has no momentum to be set.
        """
        schedule, optimizer = self.schedule, self.optimizer
        if rate is not None:
            schedule = msgspec.structs.replace(schedule, rate=rate)
        if momentum is not None:
            if not isinstance(optimizer, SGD):
                raise InputError("momentum: only SGD has one, and the experiment's optimizer is another")
            optimizer = msgspec.structs.replace(optimizer, momentum=momentum)
        return msgspec.structs.replace(self, schedule=schedule, optimizer=optimizer)

    def worker_batch(self, workers: int, gpus: int = 1) -> int:
        """Examples a step for each of `workers`, which shares them out among its `gpus`.

        Raises
        ------
        InputError
            The batch cannot be shared equally.
        """
        every = workers * gpus
        if self.batch_size % every:
            fitting = max(every, round(self.batch_size / every) * every)
            among = f"{workers} workers" if gpus == 1 else f"{every} GPUs of {workers} workers"
            raise InputError(
                f"training.batch_size is {self.batch_size}; it must be a multiple of the {among}, for example {fitting}"
            )
        return self.batch_size // workers

    def epoch_steps(self, examples: int) -> int:
        """Steps in which `examples` training examples are seen once (rounded up)."""
        return -(-examples // self.batch_size)

    def rate_at(self, step: int, examples: int) -> float:
        """Learning rate of `step` (from 0) when training on `examples`."""
        return self.schedule.rate_at(step, self.steps, self.epoch_steps(examples))
