"""Deep Gradient Compression (Lin et al., ICLR 2018): what a worker sends of its gradient, and what it keeps back."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from types import ModuleType

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Elements, Key, beside, stretches
from testbed.codecs.sparse import Kept, SparseCodec, finite
from testbed.codecs.topk import VALUES, Largest, ValueKind
from testbed.errors import CodecError
from testbed.layout import Layout

LADDER = 4  # epochs of the paper's warm-up, in each of which a quarter of what was sent before is sent


@dataclass
class DGCMemory:
    """`velocity`: the momentum u, without elements where that is zero; `total` [layout.size]: v, what is unsent."""

    velocity: torch.Tensor
    total: torch.Tensor


class DGC(SparseCodec):
    """Sends the largest accumulated velocities (section 3 of the paper, Algorithm 4 of its appendix).

    For each message the gradient is clipped to `clip_norm` * sqrt(workers); u <- momentum * u + gradient;
    v <- v + u; the largest of every layer's |v| are sent. There v keeps what is not sent, the rounding of values that
    do not travel in float32 included (none otherwise: v becomes zero), and u becomes zero (momentum factor masking).
    Layers that send all they have are not masked: they make plain momentum SGD.

    In warm-up 75, 93.75, 98.4375 and 99.6 % of the elements are held back in an epoch each (3.3). A warm-up of
    another length takes the same ladder in more or fewer rungs; none ever holds more back than `sparsity`.

    Parameters
    ----------
    layout : the model
    workers : N, the senders whose messages are averaged
    sparsity : fraction of each layer's elements that is held back after warm-up, see `Largest`
    momentum, nesterov : of the update, which is made here and not after averaging ("momentum correction", 3.2)
    clip_norm : bound on the L2 norm of the averaged gradient; None for no clipping
    warmup_epochs, epoch_steps : epochs of the warm-up, 0 for none, and messages in one
    masking : whether to clear the momentum of what is sent
    values, dense_biases : see `TopK`
    """

    costs_as = "dgc"

    def __init__(
        self,
        layout: Layout,
        workers: int,
        *,
        sparsity: float = 0.999,
        momentum: float = 0.9,
        nesterov: bool = False,
        clip_norm: float | None = None,
        warmup_epochs: int = 4,
        epoch_steps: int = 1,
        masking: bool = True,
        values: ValueKind = "float32",
        dense_biases: bool = False,
    ) -> None:
        super().__init__(layout, VALUES[values]())
        if not 0 <= sparsity < 1:
            raise CodecError(f"a sparsity is at least 0 and below 1, not {sparsity}")
        if not 0 <= momentum < 1:
            raise CodecError(f"a momentum is at least 0 and below 1, not {momentum}")
        self.momentum, self.nesterov, self.masking = momentum, nesterov, masking
        self.clip_norm = None if clip_norm is None else clip_norm * sqrt(workers)
        self.kept, self.warmup_epochs, self.epoch_steps = 1 - sparsity, warmup_epochs, epoch_steps
        self.largest = Largest(layout, dense_biases)

    def start(self) -> DGCMemory:
        """Nothing accumulated yet."""
        return DGCMemory(torch.zeros(self.layout.size if self.momentum else 0), torch.zeros(self.layout.size))

    def kept_at(self, step: int) -> float:
        """The fraction of each layer's elements that is sent at a step."""
        epoch = step // self.epoch_steps
        if epoch >= self.warmup_epochs:
            return self.kept
        return max(0.25 ** ((epoch + 1) * LADDER / self.warmup_epochs), self.kept)

    def encode(self, vector: torch.Tensor, key: Key, memory: DGCMemory) -> Buffers:
        """See `Remembering.encode`; an error in the vector leaves the memory as it was.

        The memory goes to where the vector is, e.g. from a checkpoint to a GPU.
        """
        x = finite(vector, self.layout)
        memory.total, memory.velocity = memory.total.to(vector.device), memory.velocity.to(vector.device)
        on, v = backend.of(x), beside(memory.total, vector, self.layout)
        u = beside(memory.velocity, vector, self.layout) if self.momentum else v[:0]
        on.dgc.accumulate(x, self._clipping(on, x), np.float32(self.momentum), self.nesterov, u, v)
        kept = self.kept_at(key.step)
        places = self.largest.places(v, kept)
        values = on.sparse.gather(v, places, self._pool.take)
        buffers = self.pack(Kept(places, values))
        values -= self.sent(values, places)
        on.sparse.put(v, places, values)
        if self.masking and self.momentum:
            values.fill(0)
            for here in self._masked(places, kept):
                on.sparse.put(u, places[here], values[here])
        return buffers

    def _clipping(self, on: ModuleType, x: Elements) -> np.float32:
        """The factor that clips the gradient (3.2, "local gradient clipping")."""
        if self.clip_norm is None:
            return np.float32(1)
        _, squares = on.vectors.moments_wide(x)
        return np.float32(min(1.0, self.clip_norm / sqrt(squares)) if squares else 1.0)

    def _masked(self, places: np.ndarray, kept: float) -> list[slice]:
        """Of the places, those of each layer that holds something back."""
        parts = stretches(self._counts(places).tolist())
        layers = zip(self.layout, parts, strict=True)
        return [part for layer, part in layers if self.largest.wanted(layer, kept) < layer.size]
