"""Feed-forward networks written layer by layer, and the initial weights of those that have none of their own."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from testbed.workloads.models.lrn import LocalResponseNorm
from testbed.workloads.models.pooling import MaxPool


class Stack(nn.Sequential):
    """A network under construction: each method appends a layer and returns the stack.

    Layers with weights are numbered in their order, conv1, conv2, ..., fc6, as papers number them, and each but the
    output is followed by a ReLU.

    Parameters
    ----------
    width
        Channels of the input images (after `flatten`: features).
    batch_norm
        Whether batch normalisation follows each convolution but an output, in place of its bias.
    """

    def __init__(self, width: int, batch_norm: bool = False) -> None:
        super().__init__()
        self.width, self.batch_norm, self._weighted = width, batch_norm, 0

    def conv(self, outputs: int, kernel: int, stride: int = 1, padding: int | None = None, relu: bool = True) -> Self:
        """Convolve; without `padding` the size is kept (at stride 1)."""
        padding = kernel // 2 if padding is None else padding
        normalised = self.batch_norm and relu
        self._weights("conv", nn.Conv2d(self.width, outputs, kernel, stride, padding, bias=not normalised), outputs)
        if normalised:
            self._plain("norm", nn.BatchNorm2d(outputs))
        return self._plain("relu", nn.ReLU()) if relu else self

    def linear(self, outputs: int, relu: bool = True) -> Self:
        """Connect every feature to every output."""
        self._weights("fc", nn.Linear(self.width, outputs), outputs)
        return self._plain("relu", nn.ReLU()) if relu else self

    def _weights(self, kind: str, layer: nn.Module, outputs: int) -> None:
        self._weighted += 1
        self.width = outputs
        self.add_module(f"{kind}{self._weighted}", layer)

    def pool(self, kernel: int = 2, stride: int = 2) -> Self:
        """Max-pool; a window that reaches over the end counts, as TensorFlow's and Caffe's do."""
        return self._plain("pool", MaxPool(kernel, stride, ceil_mode=True))

    def normalise(self, radius: int, alpha: float, beta: float, bias: float) -> Self:
        """Normalise each value by its neighbours in the other channels (`lrn`)."""
        return self._plain("norm", LocalResponseNorm(self.width, radius, alpha, beta, bias))

    def dropout(self, fraction: float) -> Self:
        """Drop this fraction of the values while training."""
        return self._plain("dropout", nn.Dropout(fraction))

    def average(self) -> Self:
        """Average each channel over the whole image: features."""
        return self._plain("average", nn.AdaptiveAvgPool2d(1))._plain("flatten", nn.Flatten())

    def flatten(self, pixels: int = 1) -> Self:
        """Turn maps of `pixels` each into features."""
        self.width *= pixels
        return self._plain("flatten", nn.Flatten())

    def _plain(self, kind: str, layer: nn.Module) -> Self:
        self.add_module(f"{kind}{self._weighted}", layer)
        return self


def he_weights(model: nn.Module, output_deviation: float | None = 0.01) -> nn.Module:
    """Fill in initial weights, and return the model.

    Normals of variance 2 / inputs (He et al. 2015, "Delving Deep into Rectifiers", eq. 10) and zero biases; the output
    layer has a deviation of its own, by default AlexNet's, so that the first loss is about the logarithm of the number
    of classes. Normalisations keep PyTorch's ones and zeros.
    """
    weighted = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in weighted:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    if output_deviation is not None:
        nn.init.normal_(weighted[-1].weight, std=output_deviation)
    return model


def truncated_normal_(weight: Tensor, deviation: float, bound: float = 2.0) -> Tensor:
    """Fill in normals, those beyond `bound` deviations drawn again; on the CPU, with torch's generator.

    What torch's own `trunc_normal_` draws for a seed has changed between its versions (2.11 inverts the distribution's
    integral, 2.13 draws again), and with it every run's first weights.
    """
    if weight.is_meta:  # of which only the shape is asked
        return weight
    with torch.no_grad():
        weight.normal_(0.0, deviation)
        limit = weight.new_tensor(bound * deviation, device="cpu").item()
        while bool((beyond := weight.abs() > limit).any()):
            weight.copy_(torch.where(beyond, torch.empty_like(weight).normal_(0.0, deviation), weight))
    return weight
