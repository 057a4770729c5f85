"""The models by name, and any of them as a function of one flat weight vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from testbed.errors import InputError, nearest
from testbed.layout import Layout
from testbed.learning.lrn import LocalResponseNorm


@dataclass(frozen=True)
class ModelSpec:
    """How to build a model, and the (channels, height, width) of the images it takes."""

    build: Callable[[int], nn.Module]  # number of classes -> model
    input_size: tuple[int, int, int]


def cifarnet(classes: int) -> nn.Module:
    """TensorFlow's CIFAR-10 tutorial network on 3x24x24 images; 1,068,298 parameters for ten classes.

    conv1-pool-norm1-conv2-norm2-pool-local3-local4-softmax. TensorFlow's SAME pooling puts its padding at the
    end only, which is what `ceil_mode` does.
    """
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 64, 5, padding=2))
    model.add_module("relu1", nn.ReLU())
    model.add_module("pool1", nn.MaxPool2d(3, 2, ceil_mode=True))
    model.add_module("norm1", LocalResponseNorm(64, radius=4, alpha=0.001 / 9, beta=0.75, bias=1.0))
    model.add_module("conv2", nn.Conv2d(64, 64, 5, padding=2))
    model.add_module("relu2", nn.ReLU())
    model.add_module("norm2", LocalResponseNorm(64, radius=4, alpha=0.001 / 9, beta=0.75, bias=1.0))
    model.add_module("pool2", nn.MaxPool2d(3, 2, ceil_mode=True))
    model.add_module("flatten", nn.Flatten())
    model.add_module("local3", nn.Linear(64 * 6 * 6, 384))
    model.add_module("relu3", nn.ReLU())
    model.add_module("local4", nn.Linear(384, 192))
    model.add_module("relu4", nn.ReLU())
    model.add_module("softmax", nn.Linear(192, classes))
    _tutorial_weights(model)
    return model


def _tutorial_weights(model: nn.Module) -> None:
    """Fill in the tutorial's initial weights: normals cut off at two deviations, and constant biases.

    Chosen over PyTorch's default because it learns sooner: on CIFAR-10 at batch 128, rate 0.1 falling to zero
    over 400 steps, the mean loss of the last 50 is 1.57 against 1.62.
    """
    deviations = {"conv1": 0.05, "conv2": 0.05, "local3": 0.04, "local4": 0.04, "softmax": 1 / 192}
    biases = {"conv1": 0.0, "conv2": 0.1, "local3": 0.1, "local4": 0.1, "softmax": 0.0}
    for name, deviation in deviations.items():
        layer = model.get_submodule(name)
        nn.init.trunc_normal_(layer.get_parameter("weight"), 0.0, deviation, -2 * deviation, 2 * deviation)
        nn.init.constant_(layer.get_parameter("bias"), biases[name])


def tiny(classes: int) -> nn.Module:
    """A network for smoke runs and tests: 4x4 average pooling, one hidden layer of 32; 3,818 parameters."""
    model = nn.Sequential()
    model.add_module("pool", nn.AvgPool2d(4))
    model.add_module("flatten", nn.Flatten())
    model.add_module("hidden", nn.Linear(3 * 6 * 6, 32))
    model.add_module("relu", nn.ReLU())
    model.add_module("output", nn.Linear(32, classes))
    return model


MODELS: dict[str, ModelSpec] = {
    "cifarnet": ModelSpec(cifarnet, (3, 24, 24)),
    "tiny": ModelSpec(tiny, (3, 24, 24)),
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


def build(name: str, classes: int = 10) -> nn.Module:
    """Build a model with random weights from torch's global generator (`initial_weights` is the repeatable way)."""
    return spec(name).build(classes)


def layout(model: nn.Module) -> Layout:
    """Where each of the model's parameters lies in its flat vector."""
    return Layout.of((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())


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
    """

    def __init__(self, name: str, device: torch.device | str = "cpu", classes: int = 10) -> None:
        self.name = name
        self.input_size = spec(name).input_size
        self.device = torch.device(device)
        self.module = build(name, classes).to(self.device)
        self.layout = layout(self.module)
        self._flat = torch.empty(self.layout.size, device=self.device)
        self.parameters = list(self.module.parameters())
        for parameter, layer in zip(self.parameters, self.layout, strict=True):
            parameter.data = self._flat[layer.slice].view(layer.shape)

    def load(self, weights: Tensor) -> None:
        """Take over the values of a flat vector of `layout.size` elements (from any device)."""
        self._flat.copy_(weights)
