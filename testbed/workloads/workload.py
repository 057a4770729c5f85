"""A model and a data set that are trained and tested together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from testbed.errors import InputError, code_of
from testbed.layout import Layout
from testbed.workloads import options as named
from testbed.workloads.config import Training
from testbed.workloads.data.augment import fits
from testbed.workloads.data.base import DATASETS, Data, Dataset, Metric, one_of, size_text
from testbed.workloads.devices import Precision
from testbed.workloads.evaluation import Evaluation, evaluate, probe
from testbed.workloads.flat import FlatModel
from testbed.workloads.flops import forward_flops
from testbed.workloads.launches import Launches
from testbed.workloads.learner import Learner
from testbed.workloads.memory import keep_freed
from testbed.workloads.models.base import MODELS, Model, initial_weights, kind_of, parameter_count
from testbed.workloads.shards import Indices

LOSS = Metric("loss", measure=lambda outputs, targets: float("nan"), better="lower")  # a test has it anyway


class Workload:
    """What systems train: whatever the model and the data, a flat weight vector, gradients and tests of it.

    Parameters
    ----------
    model
        `[model]` of an experiment file, e.g. `Model(name="cifarnet")`.
    dataset
        An open data set.
    device
        Where the math runs.
    precision
        Of a gradient's products on a GPU (`devices.multiplied`).

    Attributes
    ----------
    dataset
        With its examples as the model takes them.

    Raises
    ------
    InputError
        The model cannot take the data set's examples, or be built as its options say.
    """

    def __init__(
        self, model: Model, dataset: Dataset, device: torch.device | str = "cpu", precision: Precision = "tf32"
    ) -> None:
        keep_freed()
        self.model, self._precision = model, precision
        self.device = torch.device(device)
        self.dataset = dataset.fit(model.input, self.device)

    @cached_property
    def flat(self) -> FlatModel:
        """The network, once for all workers of this process."""
        return FlatModel(self._build, self.device)

    @cached_property
    def launches(self) -> Launches | None:
        """What computes all workers' gradients on a device; None on the CPU, where each computes its own."""
        return None if self.device.type == "cpu" else Launches(self.flat, self.dataset, self._precision)

    @property
    def layout(self) -> Layout:
        """How the network's parameters lie in a flat vector."""
        return self.flat.layout

    def initial_weights(self, seed: int) -> Tensor:
        """Return the weights every system starts from: flat float32, the same for the same seed."""
        return initial_weights(self.model, seed, self.dataset.outputs)

    @cached_property
    def forward_flops(self) -> int:
        """Floating-point operations of one example's forward pass (see `flops.forward_flops`).

        Raises
        ------
        InputError
            The model fails at one.
        """
        inputs, _ = one_of(self.dataset, "test_batch")
        with code_of(fails_at(self.model, inputs.shape[1:], self.dataset.name)):
            return forward_flops(self.flat.module, inputs)

    def check(self) -> None:
        """Raise InputError where the data set makes no batches, or the model cannot take one."""
        one_of(self.dataset, "train_batch")
        self.forward_flops  # noqa: B018 - counted once, which takes an example

    def learner(self, shard: Indices, worker: int, batch_size: int, seed: int, training: Training) -> Learner:
        """Make what computes the gradients of worker number `worker`, on its `shard` of the training examples."""
        return Learner(
            self.flat,
            self.dataset,
            shard,
            worker=worker,
            batch_size=batch_size,
            seed=seed,
            augmented=training.augment,
            weight_decay=training.weight_decay,
            clip_norm=training.clip_norm,
            launches=self.launches,
        )

    def evaluate(self, weights: Tensor, examples: int | None = None) -> Evaluation:
        """Test flat `weights` on the first `examples` test examples (None: all of them)."""
        return evaluate(self.flat, self.dataset, weights, examples)

    def probe(self, weights: Tensor, examples: int, sample: int) -> tuple[Evaluation, float]:
        """What `evaluate` says of flat `weights`, and their loss on a fixed sample of so many training examples."""
        return probe(self.flat, self.dataset, weights, examples, sample)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The data set's metrics, and the loss, by name."""
        return {**self.dataset.metrics, "loss": LOSS}

    @property
    def main_metric(self) -> str:
        """The name of the data set's first metric; "loss" where it has none."""
        return next(iter(self.metrics))

    @property
    def _build(self) -> partial[torch.nn.Module]:
        return partial(self.model.build, self.dataset.outputs)


def fails_at(model: Model, shape: Sequence[int], dataset: str) -> str:
    """How the line begins that says that a model cannot take an example."""
    return f"model '{model.name}' fails at an example of data set '{dataset}', of {size_text(shape)}"


def check_fits(model: Model, data: Data) -> None:
    """Raise InputError where it is known, without opening the data, that the model cannot take its examples."""
    takes, gives = model.input, named.find(DATASETS, data.dataset).input
    if takes is None or gives is None or fits(gives, takes):
        return
    models = [name for name, spec in MODELS.items() if isinstance(spec.input, tuple) and fits(gives, spec.input)]
    raise InputError(
        f"model '{model.name}' takes examples of {size_text(takes)}, data set '{data.dataset}' has {size_text(gives)}; "
        f"data sets for the model: {', '.join(datasets_for(model))}; models for the data set: {', '.join(models)}"
    )


def datasets_for(model: Model) -> list[str]:
    """Names of the data sets whose examples a model takes, as far as that is known without opening them.

    The default one is first where it is among them; where none is known to fit, those that say only once they are
    opened what their examples are.
    """
    takes = model.input
    sizes = {name: spec.input for name, spec in DATASETS.items()}
    fitting = [name for name, gives in sizes.items() if takes is None or (gives is not None and fits(gives, takes))]
    found = fitting or [name for name, gives in sizes.items() if gives is None]
    return sorted(found, key=lambda name: name != Data().dataset)


def parameter_count_of(experiment: Mapping[str, Any]) -> int:
    """The parameters of a recorded experiment's model, without opening its data.

    Raises
    ------
    InputError
        There is no such model or data set (any more), or only the data says how many outputs the model has.
    """
    model, data = experiment["model"], experiment["data"]
    outputs = named.find(DATASETS, data["dataset"]).outputs
    if outputs is None:
        raise InputError(f"data set '{data['dataset']}' says how many outputs a model has only when it is opened")
    return parameter_count(msgspec.convert(model, kind_of(model)), outputs)
