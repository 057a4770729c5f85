"""One worker's gradient, and the evaluation of a weight vector."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from testbed.errors import InputError
from testbed.learning import augment
from testbed.learning.data import Dataset
from testbed.learning.keyed import Purpose, generator
from testbed.learning.models import FlatModel
from testbed.learning.optimizer import clip_global_norm
from testbed.learning.shards import Indices, batch_indices

EVALUATION_BATCH = 250  # images; bounds the activations held at once


def device(name: str) -> torch.device:
    """Return the device called `name`, "cpu" or "cuda" (or "cuda:1" ...).

    Raises
    ------
    InputError
        There is no such device, or torch cannot use it here.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device '{name}' is unknown; use cpu, cuda or cuda:<number>")
    chosen = torch.device(name)
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{name}' cannot be used: {reason}; use cpu, or a torch build with CUDA") from None
    return chosen


class Learner:
    """Computes one worker's gradient at given weights; holds nothing that changes from step to step.

    Parameters
    ----------
    model
        May be shared by all learners of a thread.
    dataset
        Where the images come from.
    shard
        The worker's training images (`shards`).
    worker
        The worker's number among all workers of all regions; part of the key of its random choices.
    batch_size
        Images in this worker's batch.
    seed
        The experiment's seed.
    augmented
        Whether to distort images (`augment.distort`); otherwise they are cropped in the middle.
    weight_decay
        L2 decay: `weight_decay * weights` is added to the gradient (as torch.optim does), not to the loss.
    clip_norm
        Bound on the L2 norm of the worker's gradient, decay included; None for no bound.
    """

    def __init__(
        self,
        model: FlatModel,
        dataset: Dataset,
        shard: Indices,
        *,
        worker: int,
        batch_size: int,
        seed: int,
        augmented: bool = True,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        self.model, self.dataset, self.shard = model, dataset, shard
        self.worker, self.batch_size, self.seed = worker, batch_size, seed
        self.augmented, self.weight_decay, self.clip_norm = augmented, weight_decay, clip_norm

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the images (float32, ready for the model) and labels (int64) of `step`, from 0."""
        indices = batch_indices(self.shard, self.seed, self.worker, step, self.batch_size)
        images = self.dataset.train_images.take(indices).to(self.model.device)
        labels = torch.from_numpy(self.dataset.train_labels[indices]).to(self.model.device)
        if not self.augmented:
            return augment.center(images, self.model.input_size), labels
        random = generator(self.seed, Purpose.AUGMENT, self.worker, step)
        return augment.distort(images, self.model.input_size, random), labels

    def gradient(self, weights: Tensor, step: int) -> tuple[float, Tensor]:
        """Return the mean cross-entropy of the batch of `step` at `weights`, and its gradient.

        The gradient is a fresh flat tensor of `weights`' size on their device, weight decay and clipping
        applied. With the same number of torch threads on a CPU, equal arguments give equal bits.
        """
        self.model.load(weights)
        images, labels = self.batch(step)
        loss = functional.cross_entropy(self.model.module(images), labels)
        parts = torch.autograd.grad(loss, self.model.parameters)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        if self.weight_decay:
            gradient.add_(weights.to(gradient.device), alpha=self.weight_decay)
        if self.clip_norm is not None:
            clip_global_norm(gradient, self.clip_norm)
        return loss.item(), gradient.to(weights.device)


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and accuracy (a fraction) over `images` test images."""

    loss: float
    accuracy: float
    images: int


def evaluate(model: FlatModel, dataset: Dataset, weights: Tensor, images: int | None = None) -> Evaluation:
    """Evaluate flat `weights` on the first `images` test images (None: all of them), cropped in the middle."""
    count = min(images or len(dataset.test_images), len(dataset.test_images))
    model.load(weights)
    loss, correct = 0.0, 0
    with torch.no_grad():
        for start in range(0, count, EVALUATION_BATCH):
            indices = np.arange(start, min(start + EVALUATION_BATCH, count))
            labels = torch.from_numpy(dataset.test_labels[indices]).to(model.device)
            pictures = dataset.test_images.take(indices).to(model.device)
            scores = model.module(augment.center(pictures, model.input_size))
            loss += functional.cross_entropy(scores, labels, reduction="sum").item()
            correct += int((scores.argmax(1) == labels).sum())
    return Evaluation(loss / count, correct / count, count)
