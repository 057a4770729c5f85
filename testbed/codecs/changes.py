"""The largest changes of a momentum: what separates it from what has been sent of it (EF21-SGDM, arXiv 2305.15155).

The messages are those of `testbed.codecs.topk`; the algorithm stands in `testbed.systems.ef21`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Key
from testbed.codecs.costs import COSTS
from testbed.codecs.sparse import Kept, finite
from testbed.codecs.topk import TopK, ValueKind
from testbed.layout import Layout


@dataclass
class Tracked:
    """`momentum`: v, and `estimate`: what all messages so far add up to, g, both [layout.size]."""

    momentum: torch.Tensor
    estimate: torch.Tensor
    begun: bool = False


class Changes(TopK):
    """The largest elements of what separates a worker's momentum from what it has sent of it.

    Parameters
    ----------
    layout : the model
    kept, values : see `TopK`
    momentum : 1 - eta
    """

    # on top of top-k two passes over three vectors, and adding the message to the estimate
    cost = msgspec.structs.replace(
        COSTS["top-k"],
        encode=COSTS["top-k"].encode + 2 * COSTS["float32"].add + COSTS["top-k"].add,
        encode_message=COSTS["top-k"].encode_message + COSTS["top-k"].add_message,
    )

    def __init__(self, layout: Layout, kept: float, values: ValueKind, momentum: float) -> None:
        super().__init__(layout, kept, values)
        self.momentum = momentum

    def start(self) -> Tracked:
        """Nothing sent yet."""
        return Tracked(torch.zeros(self.layout.size), torch.zeros(self.layout.size))

    def encode(self, vector: torch.Tensor, key: Key, memory: Tracked) -> Buffers:  # type: ignore[override]
        """See `Remembering.encode`; an error in the vector leaves the memory as it was."""
        finite(vector, self.layout)
        memory.momentum, memory.estimate = memory.momentum.to(vector.device), memory.estimate.to(vector.device)
        memory.momentum.lerp_(vector, 1 - self.momentum if memory.begun else 1.0)
        difference = finite(memory.momentum - memory.estimate, self.layout)
        places = self.largest.places(difference, self.kept if memory.begun else 1.0)
        buffers = self.pack(Kept(places, backend.of(difference).sparse.gather(difference, places, self._pool.take)))
        self.add(buffers, memory.estimate)
        memory.begun = True
        return buffers
