"""One worker's gradient."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from testbed.gpu.moves import download, is_far
from testbed.layout import Factors
from testbed.workloads.data.base import Dataset
from testbed.workloads.factored import factored, parted
from testbed.workloads.flat import FlatModel
from testbed.workloads.keyed import Purpose, generator
from testbed.workloads.launches import Launches
from testbed.workloads.optimizer import clip_global_norm
from testbed.workloads.shards import Indices, batch_indices


class Learner:
    """Computes one worker's gradient at given weights; holds nothing that changes from step to step.

    Parameters
    ----------
    model
        May be shared by all learners of a thread.
    dataset
        Where the examples come from, as the model takes them (`Dataset.fit`).
    shard
        The worker's training examples (`shards`).
    worker
        The worker's number among all workers of all regions; part of the key of its random choices.
    batch_size
        Examples in this worker's batch.
    seed
        The experiment's seed.
    augmented
        Whether examples are distorted, as their data set does.
    weight_decay
        L2 decay: `weight_decay * weights` is added to the gradient (as torch.optim does), not to the loss.
    clip_norm
        Bound on the L2 norm of the worker's gradient, decay included; None for no bound.
    launches
        What computes the gradients of all workers of this process on a device; None on the CPU.
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
        launches: Launches | None = None,
    ) -> None:
        self.model, self.dataset, self.shard = model, dataset, shard
        self.worker, self.batch_size, self.seed = worker, batch_size, seed
        self.augmented, self.weight_decay, self.clip_norm = augmented, weight_decay, clip_norm
        self._launches = launches

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of `step`, from 0, on the model's device."""
        inputs, targets = self.dataset.train_batch(*self._choice(step))
        return inputs.to(self.model.device), targets.to(self.model.device)

    def drawn(self, step: int) -> tuple[Tensor, ...]:
        """What the batch of `step` is made of on a device (`Dataset.drawn`)."""
        return self.dataset.drawn(*self._choice(step))

    def dropout(self, step: int) -> np.random.Generator:
        """What the network drops in `step` is drawn with."""
        return generator(self.seed, Purpose.DROPOUT, self.worker, step)

    def _choice(self, step: int) -> tuple[Indices, np.random.Generator | None]:
        """The examples of `step`, and what distorts them."""
        indices = batch_indices(self.shard, self.seed, self.worker, step, self.batch_size)
        return indices, generator(self.seed, Purpose.AUGMENT, self.worker, step) if self.augmented else None

    def gradient(self, weights: Tensor, step: int) -> tuple[float | Tensor, Tensor]:
        """Return the mean loss of the batch of `step` at `weights`, and its gradient.

        The gradient is a fresh flat tensor of `weights`' size on their device, weight decay and clipping
        applied. With the same number of torch threads on a CPU, equal arguments give equal bits. Where the weights
        are on the model's device the loss stays there too, as a scalar: whoever reads it waits for all that the device
        has to do. Both may be computed a little later, together with those of other workers (`Launches`).
        """
        if self._launches is not None:
            return self._launched(self._launches, weights, step, as_factors=False)
        loss = self._loss(weights, step)
        # A parameter that the network does not use has a gradient of zero.
        parts = torch.autograd.grad(loss, self.model.parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        if self.weight_decay:
            gradient.add_(weights.to(gradient.device), alpha=self.weight_decay)
        if self.clip_norm is not None:
            clip_global_norm(gradient, self.clip_norm)
        return loss.item(), gradient.to(weights.device)

    def factors(self, weights: Tensor, step: int) -> tuple[float | Tensor, Tensor, list[Factors]]:
        """Return what `gradient` does, the gradients of the linear layers as their factors (`factored`).

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
        if self._launches is not None:
            loss, flat = self._launched(self._launches, weights, step, as_factors=True)
            return loss, *parted(flat, self.model.layout, self.batch_size)
        found, (others, factors) = factored(
            self.model, self.model.parameters, self.batch_size, lambda: self._loss(weights, step), self.clip_norm
        )
        return found.item(), others, factors

    def _launched(
        self, launches: Launches, weights: Tensor, step: int, as_factors: bool
    ) -> tuple[float | Tensor, Tensor]:
        """Loss and gradient from the device, one flat vector, where `weights` are."""
        there = launches.gradient(self, weights, step, as_factors)
        if is_far(weights):
            return there
        launches.run()
        whole = download(torch.cat([there[1], there[0].view(1)]))
        return whole[-1].item(), whole[:-1]

    def _loss(self, weights: Tensor, step: int) -> Tensor:
        """The mean loss of the batch of `step`, with what its derivatives take."""
        self.model.load(weights)
        inputs, targets = self.batch(step)
        with self.model.training(self.dropout(step)):
            return self.dataset.loss(self.model(inputs), targets)
