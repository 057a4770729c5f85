"""The strongest frequencies of a momentum, which they then leave (DeMo, arXiv 2411.19870, Algorithm 1).

A layer [out, ...] is the matrix [out, rest], cut into blocks whose sides divide the matrix's, and each block has an
orthonormal DCT-II of its own, in two dimensions; a vector is one row (the authors' code, bloc97/DeMo). Coefficients are
as many as the parameters, block after block. The messages are those of `testbed.codecs.chunked`, a block a chunk, with
values in float32, and decode to coefficients, which servers can add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import pi

import torch

from testbed.codecs.base import Buffers, Key
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.costs import COSTS, Cost
from testbed.gpu.moves import upload
from testbed.layout import Layer, Layout

ROW = "DCT of blocks"  # what a transform costs there and back
DCT, TOP, ADDING = COSTS[ROW], COSTS["top-k"], COSTS["float32"].add


class Blocks:
    """The DCT of a model's layers, block by block.

    Parameters
    ----------
    layout : the model
    most : a block's sides are at most so long
    """

    def __init__(self, layout: Layout, most: int) -> None:
        self._sides = {layer: (_divisor(_shape(layer)[0], most), _divisor(_shape(layer)[1], most)) for layer in layout}

    def size_of(self, layer: Layer) -> int:
        """Coefficients of a block."""
        return max(1, self._sides[layer][0] * self._sides[layer][1])

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        """The coefficients [layout.size] of a vector."""
        out = torch.empty_like(vector)
        for layer, (h, w) in self._sides.items():
            if layer.size and vector.numel():
                blocks = vector[layer.slice].view(_shape(layer)[0] // h, h, -1, w).transpose(1, 2)
                out[layer.slice] = (_on(vector, h) @ blocks @ _on(vector, w).T).flatten()
        return out

    def inverse(self, coefficients: torch.Tensor) -> torch.Tensor:
        """The vector of these coefficients."""
        out = torch.empty_like(coefficients)
        for layer, (h, w) in self._sides.items():
            if layer.size and coefficients.numel():
                blocks = coefficients[layer.slice].view(_shape(layer)[0] // h, -1, h, w)
                out[layer.slice] = (_on(coefficients, h).T @ blocks @ _on(coefficients, w)).transpose(1, 2).flatten()
        return out


@dataclass
class Decoupled:
    """`momentum` [layout.size]: m, without what has been sent of it."""

    momentum: torch.Tensor


class Frequencies:
    """Sends the largest coefficients of each block of the momentum.

    Parameters
    ----------
    layout : the model
    blocks : how it is transformed
    kept : coefficients of a block, or all where it has no more
    beta : what is left of the momentum at the next message
    """

    cost = Cost(
        encode=DCT.encode + DCT.decode + TOP.encode + TOP.decode + 2 * ADDING,
        decode=TOP.decode,
        add=TOP.add,
        encode_message=TOP.encode_message + TOP.decode_message,
        decode_message=TOP.decode_message,
        add_message=TOP.add_message,
    )

    def __init__(self, layout: Layout, blocks: Blocks, kept: int, beta: float) -> None:
        self.layout, self.blocks, self.beta = layout, blocks, beta
        self.largest = ChunkedTopK(layout, kept, blocks.size_of, exact=True)
        self.decode, self.add = self.largest.decode, self.largest.add

    def start(self) -> Decoupled:
        """No momentum yet."""
        return Decoupled(torch.zeros(self.layout.size))

    def encode(self, vector: torch.Tensor, key: Key, memory: Decoupled) -> Buffers:
        """See `Remembering.encode`; an error in the vector leaves the memory as it was."""
        momentum = memory.momentum.to(vector.device) * self.beta + vector
        coefficients = self.blocks.forward(momentum)
        buffers = self.largest.encode(coefficients)
        memory.momentum = momentum.sub_(self.blocks.inverse(self.decode(buffers, coefficients)))
        return buffers


def _shape(layer: Layer) -> tuple[int, int]:
    """A layer as a matrix; a vector is a row."""
    rows = layer.shape[0] if not layer.bias else 1
    return rows, layer.size // rows if rows else 0


def _divisor(length: int, most: int) -> int:
    """The largest divisor that is at most `most`."""
    return max((d for d in range(1, min(length, most) + 1) if length % d == 0), default=1)


def _on(vector: torch.Tensor, size: int) -> torch.Tensor:
    return _moved_basis(size, vector.device)


@cache
def _moved_basis(size: int, device: torch.device) -> torch.Tensor:
    """`_basis` on a device, moved once."""
    return upload(_basis(size), device)


@cache
def _basis(size: int) -> torch.Tensor:
    """The orthonormal DCT-II [frequency, place]."""
    frequency, place = torch.arange(size, dtype=torch.float64)[:, None], torch.arange(size, dtype=torch.float64)
    basis = torch.cos(pi / size * (place + 0.5) * frequency) * (2 / size) ** 0.5
    basis[0] /= 2**0.5
    return basis.float()
