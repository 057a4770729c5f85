"""A data set of what is in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from testbed.errors import InputError
from testbed.workloads.data.base import Dataset, Indices, Metric
from testbed.workloads.models.base import Shape

Loss = Callable[[Tensor, Tensor], Tensor]


class Arrays(Dataset):
    """Inputs and targets as arrays or tensors, one example a row.

    Integer targets are classes (or, in more than one dimension, a class for each place), unless a loss is given. Labels
    can be skewed over the regions where an example has one class.

    Parameters
    ----------
    train_x, train_y, test_x, test_y
        Inputs [n, ...] and targets: classes [n, ...], or numbers [n, outputs]; float64 becomes float32, the models'
        type.
    outputs
        How many a model must have; None: the number of classes, or the length of a row of targets.
    loss
        (outputs, targets) -> the batch's mean; None: the cross-entropy.
    metrics
        By name, the first one is the main one; None: accuracy, or with a loss of one's own none.
    note
        One line for results: what the data is.

    Raises
    ------
    InputError
        There are none, inputs and targets are not as many, the training and the test examples are not alike, or
        numbers to be told are no rows.
    """

    def __init__(
        self,
        train_x: ArrayLike | Tensor,
        train_y: ArrayLike | Tensor,
        test_x: ArrayLike | Tensor,
        test_y: ArrayLike | Tensor,
        *,
        outputs: int | None = None,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        note: str = "",
    ) -> None:
        self._train, self._test = (_tensor(train_x), _tensor(train_y)), (_tensor(test_x), _tensor(test_y))
        (x, y), (other_x, other_y) = self._train, self._test
        if not len(x) or not len(other_x):
            raise InputError(f"{len(x)} training and {len(other_x)} test examples: there must be some of both")
        if len(x) != len(y) or len(other_x) != len(other_y):
            raise InputError(f"{len(x)} and {len(other_x)} inputs, {len(y)} and {len(other_y)} targets: one for each")
        if x.shape[1:] != other_x.shape[1:] or y.shape[1:] != other_y.shape[1:]:
            raise InputError("training and test examples differ in shape; give both the same")
        self.train_examples, self.test_examples = len(x), len(other_x)
        self.input, self.note = tuple(x.shape[1:]), note
        if y.dim() == 1 and y.is_floating_point():  # a loss would set each output against every target
            raise InputError("targets that are numbers are [n, outputs], as a model's outputs are: give y[:, None]")
        classes = loss is None and not y.is_floating_point()
        if loss is None and not classes:
            raise InputError("targets that are no classes (whole numbers) need a loss: Arrays(..., loss=...)")
        self.outputs = outputs or (int(max(y.max(), other_y.max())) + 1 if classes else y[0].numel())
        if classes and y.dim() == 1:
            self.labels = y.numpy().astype(np.int64)
        self._loss = loss
        self._there: tuple[Tensor, Tensor] | None = None  # what is trained on, where it is on a device, too
        if metrics is not None or loss is not None:
            self.metrics = dict(metrics or {})

    def fit(self, input: Shape | None, device: torch.device) -> Self:
        """See `Dataset.fit`."""
        fitted = super().fit(input, device)
        if device.type != "cpu":
            inputs, targets = self._train
            fitted._there = inputs.to(device), targets.to(device)
        return fitted

    def drawn(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, ...]:
        """Which rows, int64 [n]."""
        return super().drawn(indices, random) if self._there is None else (torch.from_numpy(indices),)

    def made(self, drawn: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """As `train_batch`."""
        if self._there is None:
            return super().made(drawn)
        inputs, targets = (part.index_select(0, drawn[0]) for part in self._there)
        return inputs, targets

    def train_batch(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        inputs, targets = self._train
        return inputs[indices], targets[indices]

    def test_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        inputs, targets = self._test
        return inputs[indices], targets[indices]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets) if self._loss is None else self._loss(outputs, targets)


def _tensor(values: ArrayLike | Tensor) -> Tensor:
    """A tensor of a type that models take: whole numbers as int64, others as float32."""
    tensor = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values)).detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor.long()
