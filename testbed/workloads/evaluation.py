"""The test of a weight vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from testbed.workloads import calibration
from testbed.workloads.data.base import Dataset
from testbed.workloads.flat import FlatModel

SAMPLE_SEED = 1  # of the training examples whose loss is told
Batch = Callable[[np.ndarray], tuple[Tensor, Tensor]]
VALUES_AT_ONCE = 250 * 3 * 32 * 32  # of the inputs of a batch


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and the data set's metrics, by name, over `examples` test examples."""

    loss: float
    metrics: Mapping[str, float]
    examples: int


def evaluate(model: FlatModel, dataset: Dataset, weights: Tensor, examples: int | None = None) -> Evaluation:
    """Evaluate flat `weights` on the first `examples` test examples (None: all of them)."""
    _load(model, dataset, weights)
    return _tested(model, dataset, examples)


def probe(model: FlatModel, dataset: Dataset, weights: Tensor, examples: int, sample: int) -> tuple[Evaluation, float]:
    """What `evaluate` says of flat `weights`, and their mean loss on a fixed sample of so many training examples.

    The sample is as it is, without augmentation; all training examples where there are fewer. Both are of the same
    weights, so that batch normalisation is calibrated once: that passes more examples than most probes test.
    """
    _load(model, dataset, weights)
    tested = _tested(model, dataset, examples)
    chosen = np.random.default_rng(SAMPLE_SEED).permutation(dataset.train_examples)[:sample]
    batches = _outputs(model, dataset, dataset.train_batch, np.sort(chosen))
    return tested, sum(dataset.total_loss(outputs, targets) for outputs, targets in batches) / len(chosen)


def _tested(model: FlatModel, dataset: Dataset, examples: int | None) -> Evaluation:
    """Of the weights that are loaded."""
    count = min(examples or dataset.test_examples, dataset.test_examples)
    loss, sums = 0.0, dict.fromkeys(dataset.metrics, 0.0)
    for outputs, targets in _outputs(model, dataset, dataset.test_batch, np.arange(count)):
        loss += dataset.total_loss(outputs, targets)
        for name, metric in dataset.metrics.items():
            sums[name] += float(metric.measure(outputs, targets))
    return Evaluation(loss / count, {name: total / count for name, total in sums.items()}, count)


def _load(model: FlatModel, dataset: Dataset, weights: Tensor) -> None:
    model.load(weights)
    if model.normalisations:
        taken = calibration.chosen(dataset.train_examples)
        even = np.array_split(taken, -(-len(taken) // batch_size(dataset)))
        model.calibrate(dataset.train_batch(indices)[0].to(model.device) for indices in even)


def _outputs(model: FlatModel, dataset: Dataset, batch: Batch, indices: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    """What the network makes of the examples of these indices, a batch at a time, and their targets."""
    with torch.no_grad():
        for part in np.split(indices, range(batch_size(dataset), len(indices), batch_size(dataset))):
            inputs, targets = (each.to(model.device) for each in batch(part))
            yield model(inputs), targets


def batch_size(dataset: Dataset) -> int:
    """How many examples go through a network at once in a test."""
    return max(1, min(dataset.tested_at_once, VALUES_AT_ONCE // math.prod(dataset.input)))
