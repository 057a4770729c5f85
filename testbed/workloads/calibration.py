"""Batch normalisation: by the batch at hand in training, by statistics of training data in a test.

The running averages that PyTorch keeps while it trains would be a second kind of state, which no system sends, and
workers that share a network would share them. So training keeps none, and before a test the statistics are taken anew,
at the weights that are tested (Wu & Johnson 2021, "Rethinking 'Batch' in BatchNorm", section 3: "precise" statistics):

1. The examples are a fixed number of training examples, drawn once for a data set, the same for every system, seed and
   step, cropped but not distorted, as test examples are.
2. They pass through the network in batches as those of a test; mean and variance of each normalisation are the
   averages over the batches.
3. Nothing but normalisations is in training mode: nothing is dropped.

A network without batch normalisation is not touched. A calibration is off the run's clock, as the test is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from testbed.workloads.data.base import Indices
from testbed.workloads.keyed import Purpose, generator

EXAMPLES = 500


def normalisations(module: nn.Module) -> list[_BatchNorm]:
    """The batch normalisations that are tested with statistics of other data than the batch at hand."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and part.running_mean is not None]


def chosen(train_examples: int) -> Indices:
    """The training examples that statistics are taken of: at most EXAMPLES, always the same, in ascending order."""
    order = generator(0, Purpose.CALIBRATION).permutation(train_examples)
    return np.sort(order[:EXAMPLES])


@contextmanager
def averaging(parts: Sequence[_BatchNorm]) -> Iterator[None]:
    """Within it each normalisation takes in the statistics of the batches that pass, beginning with none."""
    for part in parts:
        part.track_running_stats = True
        part.momentum = None  # a cumulative average
        part.reset_running_stats()
        part.train()
    try:
        yield
    finally:
        for part in parts:
            part.track_running_stats = False
            part.eval()
