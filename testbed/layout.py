"""How a model's parameters lie in one flat float32 vector.

Systems and codecs work on flat vectors; a `Layout` says which stretch of the vector is which tensor. It is
the only thing a codec knows of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # reading an experiment file needs no torch
    from torch import Tensor

Factors: TypeAlias = "tuple[Tensor, Tensor]"
"""Of a linear layer's gradient, for a batch of L: X [L, inputs], Delta [L, outputs]."""


@dataclass(frozen=True)
class Layer:
    """One parameter tensor: its place in the flat vector is `[offset, offset + size)`."""

    name: str  # as in model.named_parameters(), e.g. "conv1.weight"
    shape: tuple[int, ...]
    offset: int  # elements
    last: bool  # belongs to the model's last layer, which TernGrad (3.3) and WeightGrad (4.3) keep in float

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        return self.offset + self.size

    @cached_property
    def slice(self) -> slice:
        return slice(self.offset, self.end)

    @property
    def bias(self) -> bool:
        """Whether the tensor is a bias (or another vector): one dimension or none."""
        return len(self.shape) < 2


@dataclass(frozen=True)
class Linear:
    """A linear layer: y = weight x + bias."""

    name: str  # the module's, e.g. "fc1"
    weight: Layer  # [outputs, inputs]
    bias: Layer | None  # [outputs]

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True)
class Layout:
    """The layers of a model in the order of its parameters, without gaps."""

    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> Layout:
        """Build from (name, shape) pairs; the tensors of the last module are marked `last`.

        Parameters of the model itself, which are in no named module, are as many layers as there are matrices.
        """
        pairs = [(name, tuple(shape)) for name, shape in shapes]
        last_module = pairs[-1][0].rpartition(".")[0] if pairs else ""
        first = len(pairs) - 1
        while first > 0 and len(pairs[first][1]) < 2:
            first -= 1
        offsets = accumulate((prod(shape) for _, shape in pairs), initial=0)
        return cls(
            tuple(
                Layer(
                    name,
                    shape,
                    offset,
                    last=name.rpartition(".")[0] == last_module if last_module else place >= first,
                )
                for place, ((name, shape), offset) in enumerate(zip(pairs, offsets, strict=False))
            )
        )

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(layer.size for layer in self.layers)

    @cached_property
    def linear(self) -> tuple[Linear, ...]:
        """The linear layers: each matrix with the vector that follows it under the same module's name, its bias."""
        followers = (*self.layers[1:], None)
        found = []
        for layer, follower in zip(self.layers, followers, strict=True):
            module = layer.name.rpartition(".")[0]
            if len(layer.shape) == 2:
                bias = follower if follower is not None and follower.name == f"{module}.bias" else None
                found.append(Linear(module, layer, bias))
        return tuple(found)

    @cached_property
    def rest(self) -> Layout:
        """The layers that are no part of a linear one, as a layout of their own."""
        taken = {part for layer in self.linear for part in (layer.weight, layer.bias)}
        layers = [layer for layer in self.layers if layer not in taken]
        offsets = accumulate((layer.size for layer in layers), initial=0)
        return Layout(tuple(replace(layer, offset=offset) for layer, offset in zip(layers, offsets, strict=False)))

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)
