"""What a timing-only run needs of a model and its data: how large they are. Neither need be there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from testbed.errors import code_of
from testbed.layout import Layout
from testbed.workloads import options as named
from testbed.workloads.data.base import DATASETS, Data, Metric
from testbed.workloads.flops import by_shapes, forward_flops
from testbed.workloads.models.base import Model, layout
from testbed.workloads.models.known import Known
from testbed.workloads.workload import LOSS, fails_at


@dataclass(frozen=True)
class Examples:
    """Takes the place of a data set; attributes as `Dataset`'s."""

    train_examples: int
    name: str = ""
    note: str = ""
    real: bool = True


class SizedWorkload:
    """Takes the place of a `Workload`; attributes as there.

    Parameters
    ----------
    layout : of the model
    forward_flops : of one example
    dataset : how many examples there are
    """

    main_metric = "loss"

    def __init__(self, layout: Layout, forward_flops: float, dataset: Examples) -> None:
        self.layout, self.forward_flops, self.dataset = layout, forward_flops, dataset
        self.metrics: dict[str, Metric] = {"loss": LOSS}

    @classmethod
    def of_layers(cls, known: Known) -> Self:
        """Of a model that is known by its layers.

        Raises
        ------
        InputError
            The layers are not what the model is stated to have.
        """
        return cls(known.layout(), 1e9 * known.forward_gflop, Examples(known.examples, note=known.example))

    @classmethod
    def of_module(cls, model: Model, data: Data) -> Self | None:
        """Of a network, which is built without memory for its parameters; None where only the open data says its size.

        Raises
        ------
        InputError
            The model cannot be built as its options say, or fails at an example.
        """
        spec = named.find(DATASETS, data.dataset)
        if spec.outputs is None or spec.examples is None or model.input is None:
            return None
        build = partial(model.build, spec.outputs)
        example = torch.zeros(1, *model.input)

        def sizes(where: torch.device) -> tuple[Layout, int]:
            module = build()
            with code_of(fails_at(model, example.shape[1:], data.dataset)):
                return layout(module), forward_flops(module, example.to(where))

        layers, flops = by_shapes(sizes, torch.device("cpu"))
        return cls(layers, flops, Examples(spec.examples, data.dataset, "sizes alone"))

    def initial_weights(self, seed: int) -> torch.Tensor:
        """A vector without elements."""
        return torch.empty(0)
