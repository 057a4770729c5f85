"""The models by name, and any of them as a function of one flat weight vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from testbed.errors import InputError, nearest
from testbed.layout import Layout
from testbed.workloads.data.base import SOURCES, source
from testbed.workloads.data.images import Size, size_text
from testbed.workloads.models import deep
from testbed.workloads.models import plain as networks


@dataclass(frozen=True)
class ModelSpec:
    """How to build a model, and the (channels, height, width) of the images it takes."""

    build: Callable[[int], nn.Module]  # number of classes -> model
    input_size: Size


MODELS: dict[str, ModelSpec] = {
    "tiny": ModelSpec(networks.tiny, (3, 24, 24)),
    "fc": ModelSpec(networks.fc, (1, 28, 28)),
    "lenet": ModelSpec(networks.lenet, (1, 28, 28)),
    "cifarnet": ModelSpec(networks.cifarnet, (3, 24, 24)),
    "mqgrad-cnn": ModelSpec(networks.mqgrad_cnn, (3, 28, 28)),
    "alexnet-32": ModelSpec(networks.alexnet_32, (3, 32, 32)),
    "vgg-a-32": ModelSpec(networks.vgg_a_32, (3, 32, 32)),
    "nin-32": ModelSpec(networks.nin_32, (3, 32, 32)),
    "alexnet": ModelSpec(networks.alexnet, (3, 224, 224)),
    "vgg-a": ModelSpec(networks.vgg_a, (3, 224, 224)),
    "nin": ModelSpec(networks.nin, (3, 224, 224)),
    "googlenet": ModelSpec(deep.googlenet, (3, 224, 224)),
    "resnet-50": ModelSpec(deep.resnet_50, (3, 224, 224)),
    "resnet-152": ModelSpec(deep.resnet_152, (3, 224, 224)),
}


def spec(name: str) -> ModelSpec:
    """Look a model up.

    Raises
    ------
    InputError
        There is no model of that name.
    """
    try:
        return MODELS[name]
    except KeyError:
        raise InputError(f"no model '{name}'{nearest(name, MODELS)}") from None


def check_fits(name: str, dataset: str) -> None:
    """Raise InputError unless model `name` can take its images from data set `dataset`, cropped or padded."""
    takes, gives = spec(name).input_size, source(dataset).image_size
    if _fits(takes, gives):
        return
    models = [other for other in MODELS if _fits(MODELS[other].input_size, gives)]
    datasets = [other for other in SOURCES if _fits(takes, SOURCES[other].image_size)]
    raise InputError(
        f"model '{name}' takes {size_text(takes)} images, data set '{dataset}' has {size_text(gives)}; "
        f"data sets for the model: {', '.join(datasets)}; models for the data set: {', '.join(models)}"
    )


def _fits(takes: Size, gives: Size) -> bool:
    return takes[0] == gives[0] and takes[1] <= gives[1] and takes[2] <= gives[2]


def build(name: str, classes: int = 10) -> nn.Module:
    """Build a model with random weights from torch's global generator (`initial_weights` is the repeatable way)."""
    return spec(name).build(classes)


def layout(model: nn.Module) -> Layout:
    """Where each of the model's parameters lies in its flat vector."""
    return Layout.of((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())


def parameter_count(name: str, classes: int = 10) -> int:
    """The number of a model's parameters, without room for them."""
    with torch.device("meta"):
        return layout(build(name, classes)).size


def initial_weights(name: str, seed: int, classes: int = 10) -> Tensor:
    """Return the weights every system of an experiment starts from: flat float32, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(name, classes)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def forward_flops(name: str, classes: int = 10) -> int:
    """Count the floating-point operations of one sample's forward pass, from the layers' shapes.

    A multiply-add is two operations; only convolutions and linear layers count, as in the FLOP figures that
    papers give. The backward pass costs about twice as much again.
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        build(name, classes)(torch.empty(1, *spec(name).input_size))
    # A batched product is a normalisation's (lrn.py), never a layer's.
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if "bmm" not in str(operation))


class FlatModel:
    """A model whose parameters are views of one flat float32 vector.

    One instance serves all learners and evaluators of a process, so that 500 virtual workers do not hold 500
    models; it is not for two threads at once.

    Attributes
    ----------
    name, input_size, layout
        As in the registry; `input_size` is (channels, height, width).
    parameters
        The views, in the order of `layout`.
    module
        The torch module, in evaluation mode but within `training`.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu", classes: int = 10) -> None:
        self.name = name
        self.input_size = spec(name).input_size
        self.device = torch.device(device)
        self.module = build(name, classes).to(self.device).eval()
        self.layout = layout(self.module)
        self._flat = torch.empty(self.layout.size, device=self.device)
        self.parameters = list(self.module.parameters())
        for parameter, layer in zip(self.parameters, self.layout, strict=True):
            parameter.data = self._flat[layer.slice].view(layer.shape)

    def load(self, weights: Tensor) -> None:
        """Take over the values of a flat vector of `layout.size` elements (from any device)."""
        self._flat.copy_(weights)

    @contextmanager
    def training(self, random: np.random.Generator) -> Iterator[None]:
        """Within it the model drops values as `random` says, where it has dropout; outside it drops none.

        What is dropped depends on the kind of device too: torch draws otherwise on a GPU than on a CPU.
        """
        on_gpu = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=on_gpu):
            seed = int(random.integers(2**63))
            torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
            if on_gpu:
                torch.cuda.manual_seed(seed)
            self.module.train()
            try:
                yield
            finally:
                self.module.eval()
