"""The test of a weight vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from testbed.workloads import calibration
from testbed.workloads.data.base import Dataset
from testbed.workloads.flat import FlatModel

VALUES_AT_ONCE = 250 * 3 * 32 * 32  # of the inputs of a batch


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and the data set's metrics, by name, over `examples` test examples."""

    loss: float
    metrics: Mapping[str, float]
    examples: int


def evaluate(model: FlatModel, dataset: Dataset, weights: Tensor, examples: int | None = None) -> Evaluation:
    """Evaluate flat `weights` on the first `examples` test examples (None: all of them)."""
    count = min(examples or dataset.test_examples, dataset.test_examples)
    model.load(weights)
    if model.normalisations:
        taken = calibration.chosen(dataset.train_examples)
        even = np.array_split(taken, -(-len(taken) // batch_size(dataset)))
        model.calibrate(dataset.train_batch(indices)[0].to(model.device) for indices in even)
    loss, sums = 0.0, dict.fromkeys(dataset.metrics, 0.0)
    with torch.no_grad():
        for indices in np.split(np.arange(count), range(batch_size(dataset), count, batch_size(dataset))):
            inputs, targets = (part.to(model.device) for part in dataset.test_batch(indices))
            outputs = model(inputs)
            loss += dataset.total_loss(outputs, targets)
            for name, metric in dataset.metrics.items():
                sums[name] += float(metric.measure(outputs, targets))
    return Evaluation(loss / count, {name: total / count for name, total in sums.items()}, count)


def batch_size(dataset: Dataset) -> int:
    """How many examples go through a network at once in a test."""
    return max(1, min(dataset.tested_at_once, VALUES_AT_ONCE // math.prod(dataset.input)))
