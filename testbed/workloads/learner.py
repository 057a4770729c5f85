"""One worker's gradient, and the evaluation of a weight vector."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from testbed.errors import InputError
from testbed.layout import Factors
from testbed.workloads.data import augment
from testbed.workloads.data.base import Dataset
from testbed.workloads.keyed import Purpose, generator
from testbed.workloads.models.base import FlatModel
from testbed.workloads.optimizer import clip_global_norm
from testbed.workloads.shards import Indices, batch_indices

EVALUATION_BATCH = 250  # images, or fewer large ones: bounds the activations held at once
EVALUATION_VALUES = EVALUATION_BATCH * 3 * 32 * 32


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
        return augment.distort(images, self.model.input_size, random, self.dataset.distortion), labels

    def gradient(self, weights: Tensor, step: int) -> tuple[float, Tensor]:
        """Return the mean cross-entropy of the batch of `step` at `weights`, and its gradient.

        The gradient is a fresh flat tensor of `weights`' size on their device, weight decay and clipping
        applied. With the same number of torch threads on a CPU, equal arguments give equal bits.
        """
        loss = self._loss(weights, step)
        parts = torch.autograd.grad(loss, self.model.parameters)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        if self.weight_decay:
            gradient.add_(weights.to(gradient.device), alpha=self.weight_decay)
        if self.clip_norm is not None:
            clip_global_norm(gradient, self.clip_norm)
        return loss.item(), gradient.to(weights.device)

    def factors(self, weights: Tensor, step: int) -> tuple[float, Tensor, list[Factors]]:
        """Return what `gradient` does, the gradients of the linear layers as their factors.

        A linear layer's gradient is Delta^T X / L, of its input X and the loss's derivative Delta by its output
        (isgq, eq. 1 and 11); its bias's is the mean of Delta's rows, as if each row of X ended in a 1 (eq. 10).
        Both are at hand in the backward pass that the other parameters' gradients take; no product of them is made.
        Weight decay is left to whoever makes the update, who has the weights, and `clip_norm` bounds the gradient
        without it.

        Returns
        -------
        loss
            As of `gradient`.
        others
            The gradients of the parameters of `layout.rest`, one after another.
        factors
            (X [L, inputs], Delta [L, outputs]) of each layer of `layout.linear`, for a batch of L.

        Raises
        ------
        InputError
            The model does not put each linear layer exactly once to the batch, row by row.
        """
        linear, rest = self._parameters()
        with _recorded(linear, self.batch_size) as calls:
            loss = self._loss(weights, step)
        outputs = [calls[name][1] for name in linear]
        derivatives = torch.autograd.grad(loss, [*outputs, *rest])
        backward = [self.batch_size * part for part in derivatives[: len(outputs)]]
        none = torch.empty(0, device=self.model.device)
        others = torch.cat([none, *(part.reshape(-1) for part in derivatives[len(outputs) :])])
        factors = [(calls[name][0], delta) for name, delta in zip(linear, backward, strict=True)]
        if self.clip_norm is not None:
            norm = _factored_norm(factors, [layer.bias is not None for layer in self.model.layout.linear], others)
            if norm > self.clip_norm:
                others.mul_(self.clip_norm / norm)
                for delta in backward:
                    delta.mul_(self.clip_norm / norm)
        home = weights.device
        return loss.item(), others.to(home), [(inputs.to(home), delta.to(home)) for inputs, delta in factors]

    def _loss(self, weights: Tensor, step: int) -> Tensor:
        """The mean cross-entropy of the batch of `step`, with what its derivatives take."""
        self.model.load(weights)
        images, labels = self.batch(step)
        with self.model.training(generator(self.seed, Purpose.DROPOUT, self.worker, step)):
            return functional.cross_entropy(self.model.module(images), labels)

    def _parameters(self) -> tuple[dict[str, nn.Module], list[Tensor]]:
        """The modules of `layout.linear` by name, and the parameters of `layout.rest`."""
        names = [layer.name for layer in self.model.layout.linear]
        modules = {name: self.model.module.get_submodule(name) for name in names}
        rest = {layer.name for layer in self.model.layout.rest}
        named = zip(self.model.layout, self.model.parameters, strict=True)
        return modules, [parameter for layer, parameter in named if layer.name in rest]


@contextmanager
def _recorded(modules: Mapping[str, nn.Module], rows: int) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Within it, note the input and output of each module's call; at its end each has been called once."""
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str, given: Tensor, made: Tensor) -> None:
        if name in calls or given.shape[:-1] != (rows,):
            raise InputError(f"layer {name}: its gradient has no factors, it does not take the batch once, row by row")
        calls[name] = (given.detach(), made)

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: note(name, inputs[0], output)

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
    for name in modules:
        if name not in calls:
            raise InputError(f"layer {name}: its gradient has no factors, the model does not use it")
        if calls[name][1]._version:
            raise InputError(f"layer {name}: its gradient has no factors, its output is overwritten in place")


def _factored_norm(factors: Sequence[Factors], biases: Sequence[bool], others: Tensor) -> float:
    """The L2 norm of a whole gradient; ||Delta^T X||^2 is the sum of the products of (X X^T) and (Delta Delta^T)."""
    total = others.double().square().sum()
    for (inputs, delta), bias in zip(factors, biases, strict=True):
        total += ((inputs @ inputs.T + bias) * (delta @ delta.T)).double().sum() / len(inputs) ** 2
    return math.sqrt(max(total.item(), 0.0))


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
    batch = max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // math.prod(model.input_size)))
    with torch.no_grad():
        for start in range(0, count, batch):
            indices = np.arange(start, min(start + batch, count))
            labels = torch.from_numpy(dataset.test_labels[indices]).to(model.device)
            pictures = dataset.test_images.take(indices).to(model.device)
            scores = model.module(augment.center(pictures, model.input_size))
            loss += functional.cross_entropy(scores, labels, reduction="sum").item()
            correct += int((scores.argmax(1) == labels).sum())
    return Evaluation(loss / count, correct / count, count)
