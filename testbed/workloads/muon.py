"""Muon: momentum of which each matrix is made orthogonal before it is applied (Jordan et al., 2024).

kellerjordan.github.io/posts/muon. For a layer's weights as a matrix W [out, rest], with gradient G:

    M <- momentum M + G;  W <- (1 - rate decay) W - rate sqrt(out / rest) orthogonal(M)

`orthogonal` is U V^T of M = U S V^T, as five steps of a quintic Newton-Schulz iteration come near to it: singular
values become 0.97 to 1.15 where those of M are more than a 400th of its norm, and smaller ones less. Coefficients of
the steps, the scale sqrt(out / rest) and momentum without Nesterov's step are those of MuLoCo's authors' code
(facebookresearch/MuLoCo, after microsoft/dion); here it is done in float32, there in bfloat16. Of a convolution's
weights that code's scale takes the first two sides, sqrt(out / in), without the kernel's: it is the root of the
kernel's area larger there, where here a convolution is the matrix that it is made orthogonal as.

Only matrices inside a model are trained so. Vectors, the last layer and those that are named go on with another
optimizer, at the same rate times `others_rate`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

from testbed.gpu.moves import upload
from testbed.layout import Layer, Layout
from testbed.workloads.optimizer import AdamW, Optimizer

STEPS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
TINY = 1e-8  # beside the norm, for a matrix of zeros
MOMENTUM = 0.9
EMBEDDINGS = "tokens places embedding"


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest matrix with orthonormal rows or columns, about; [n, m]."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + TINY)
    for a, b, c in STEPS:
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@dataclass
class MuonState:
    """`velocity`: M of all matrices in the flat vector [layout.size]; `others`: the other optimizer's state."""

    velocity: torch.Tensor
    others: Any


class Muon:
    """The optimizer of a model's flat vector.

    Parameters
    ----------
    layout : the model
    others, others_rate : what trains all that is no inner matrix, and its rate as a multiple of Muon's
    named : modules, by the first part of their name, that are trained so although they are matrices: embeddings
    momentum : of M
    """

    def __init__(
        self,
        layout: Layout,
        others: Optimizer,
        others_rate: float = 1.0,
        named: Collection[str] = tuple(EMBEDDINGS.split()),
        momentum: float = MOMENTUM,
    ) -> None:
        inner = [layer for layer in layout if not (layer.bias or layer.last or layer.name.split(".")[0] in named)]
        self.matrices = [layer for layer in inner if layer.size]
        self.momentum, self.others, self.others_rate = momentum, others, others_rate
        self.carried = momentum  # as an optimizer's
        self.decay = others.weight_decay if isinstance(others, AdamW) else 0.0
        rest = [torch.arange(layer.offset, layer.end) for layer in layout if layer not in self.matrices]
        self.rest = torch.cat(rest) if rest else torch.empty(0, dtype=torch.int64)
        self._there: dict[torch.device, torch.Tensor] = {}  # `rest` on each device where it has been needed

    @property
    def flops(self) -> float:
        """Of an update: the products of the iteration, of n by m, n by n and n by m again."""
        sides = [sorted(_sides(layer)) for layer in self.matrices]
        return len(STEPS) * sum(4.0 * n * n * m + 2.0 * n**3 for n, m in sides)

    @property
    def nbytes(self) -> float:
        """Memory that the rest of an update moves: gradient, M and weights, or what the other optimizer passes over."""
        return 4.0 * (7 * sum(layer.size for layer in self.matrices) + self.others.passes * self.rest.numel())

    def start(self, weights: torch.Tensor) -> MuonState:
        """Return the state before the first update."""
        return MuonState(torch.zeros_like(weights), self.others.start(self._rest(weights)))

    def update(self, state: MuonState, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        """Apply one `gradient` to `weights` and `state`, in place."""
        if not weights.numel():  # of a timing-only run
            return
        state.velocity.mul_(self.momentum).add_(gradient)
        rest = self._rest(weights)
        self.others.update(state.others, rest, self._rest(gradient), rate * self.others_rate)
        for layer in self.matrices:
            out, inputs = _sides(layer)
            step = orthogonal(state.velocity[layer.slice].view(out, inputs)).reshape(-1)
            weights[layer.slice].mul_(1 - rate * self.decay).sub_(step, alpha=rate * sqrt(out / inputs))
        weights[self._places(weights)] = rest

    def _rest(self, vector: torch.Tensor) -> torch.Tensor:
        return vector[self._places(vector)] if vector.numel() else vector

    def _places(self, vector: torch.Tensor) -> torch.Tensor:
        if vector.device not in self._there:
            self._there[vector.device] = upload(self.rest, vector.device)
        return self._there[vector.device]


Updater = Optimizer | Muon
"""What makes an update of a flat vector."""


def _sides(layer: Layer) -> tuple[int, int]:
    """A layer as a matrix [out, rest]."""
    return layer.shape[0], layer.size // layer.shape[0]
