"""The test of a weight vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from testbed.workloads.data.base import Dataset
from testbed.workloads.flat import FlatModel

EVALUATION_BATCH = 250  # examples, or fewer large ones: bounds the activations held at once
EVALUATION_VALUES = EVALUATION_BATCH * 3 * 32 * 32


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
    loss, sums = 0.0, dict.fromkeys(dataset.metrics, 0.0)
    with torch.no_grad():
        for indices in batches(np.arange(count), dataset):
            inputs, targets = (part.to(model.device) for part in dataset.test_batch(indices))
            outputs = model(inputs)
            loss += dataset.total_loss(outputs, targets)
            for name, metric in dataset.metrics.items():
                sums[name] += float(metric.measure(outputs, targets))
    return Evaluation(loss / count, {name: total / count for name, total in sums.items()}, count)


def batches(indices: np.ndarray, dataset: Dataset) -> list[np.ndarray]:
    """Cut indices into batches that fit into memory."""
    size = max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // math.prod(dataset.input)))
    return [indices[start : start + size] for start in range(0, len(indices), size)]
