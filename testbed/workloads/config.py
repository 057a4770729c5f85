"""The experiment file's `[data]` and `[training]` parts: strict types with their ranges.

msgspec reports a wrong key, type or range with the key's path; what spans several keys is checked in
`__post_init__` (a ValueError there gets the path too).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError
from testbed.workloads import shards
from testbed.workloads.data.base import source
from testbed.workloads.optimizer import SGD, Fraction, Optimizer
from testbed.workloads.schedule import Count, Polynomial, Rate, Schedule


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is trained on, and how it is divided.

    Attributes
    ----------
    dataset
        A key of `data.SOURCES`.
    split
        "iid", or "dirichlet": labels skewed over the regions.
    alpha
        The Dirichlet concentration: 0.1 gives a region a few classes, 100 is close to IID.
    """

    dataset: str = "cifar10"
    split: Literal["iid", "dirichlet"] = "iid"
    alpha: Annotated[float, msgspec.Meta(ge=1e-3, le=1e6)] | None = None

    def __post_init__(self) -> None:
        try:
            source(self.dataset)
        except InputError as error:
            raise ValueError(f"dataset: {error}") from None
        if self.split == "dirichlet" and self.alpha is None:
            raise ValueError("alpha: needed with split = 'dirichlet' (0.1 skews strongly, 100 hardly)")
        if self.split == "iid" and self.alpha is not None:
            raise ValueError("alpha: only goes with split = 'dirichlet'; remove it or set the split")

    def shards(self, labels: NDArray[np.int64], workers: list[int], seed: int) -> list[list[shards.Indices]]:
        """Divide training images among `workers` of each region: `result[region][worker]` (see `shards`)."""
        if self.alpha is None:
            return shards.iid(len(labels), workers, seed)
        return shards.dirichlet(labels, workers, seed, self.alpha)


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is trained; the same for every system of an experiment unless its options say otherwise.

    Attributes
    ----------
    steps
        Global steps of the run.
    batch_size
        Images in one global step, over all workers.
    schedule, optimizer
        Chosen by their `kind`.
    weight_decay
        L2 decay, as torch.optim's `weight_decay`.
    clip_norm
        Bound on the L2 norm of one worker's gradient; left out: no bound.
    ema_decay
        Decay of the moving average of the weights (0.9999 is usual); left out: no average is kept.
    augment
        Whether training images are distorted (`augment.distort`).
    """

    steps: Count = 400
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 128
    schedule: Schedule = msgspec.field(default_factory=lambda: Polynomial(rate=0.1))
    optimizer: Optimizer = SGD()
    weight_decay: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    clip_norm: Rate | None = None
    ema_decay: Fraction | None = None
    augment: bool = True

    def worker_batch(self, workers: int) -> int:
        """Images a step for each of `workers`.

        Raises
        ------
        InputError
            The batch cannot be shared equally.
        """
        if self.batch_size % workers:
            fitting = max(workers, round(self.batch_size / workers) * workers)
            raise InputError(
                f"training.batch_size is {self.batch_size}; it must be a multiple of the {workers} workers, "
                f"for example {fitting}"
            )
        return self.batch_size // workers

    def epoch_steps(self, images: int) -> int:
        """Steps in which `images` training images are seen once (rounded up)."""
        return -(-images // self.batch_size)

    def rate_at(self, step: int, images: int) -> float:
        """Learning rate of `step` (from 0) when training on `images`."""
        return self.schedule.rate_at(step, self.steps, self.epoch_steps(images))
