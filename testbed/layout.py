"""How a model's parameters lie in one flat float32 vector.

Systems and codecs work on flat vectors; a `Layout` says which stretch of the vector is which tensor. It is
the only thing a codec knows of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod


@dataclass(frozen=True)
class Layer:
    """One parameter tensor: its place in the flat vector is `[offset, offset + size)`."""

    name: str  # as in model.named_parameters(), e.g. "conv1.weight"
    shape: tuple[int, ...]
    offset: int  # elements
    last: bool  # belongs to the model's last layer, which TernGrad (3.3) and WeightGrad (4.3) keep in float

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.end)

    @property
    def bias(self) -> bool:
        """Whether the tensor is a bias (or another vector): one dimension or none."""
        return len(self.shape) < 2


@dataclass(frozen=True)
class Layout:
    """The layers of a model in the order of its parameters, without gaps."""

    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> Layout:
        """Build from (name, shape) pairs; the tensors of the last named module are marked `last`."""
        pairs = [(name, tuple(shape)) for name, shape in shapes]
        last_module = pairs[-1][0].rpartition(".")[0] if pairs else ""
        offsets = accumulate((prod(shape) for _, shape in pairs), initial=0)
        return cls(
            tuple(
                Layer(name, shape, offset, last=name.rpartition(".")[0] == last_module)
                for (name, shape), offset in zip(pairs, offsets, strict=False)
            )
        )

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(layer.size for layer in self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)
