"""EF21-SGDM: the largest changes of each worker's momentum (Fatkhullin, Tyurin and Richtarik, NeurIPS 2023).

arXiv 2305.15155, Algorithm 1. Worker i keeps the momentum v of its gradients and an estimate g of it that the server
knows as well, since it is made of the messages alone:

    v <- (1 - eta) v + eta gradient;  c <- TopK(v - g);  g <- g + c, and c is sent;  all: w <- w - rate * mean(g)

Decisions: `momentum` is 1 - eta. Before the first step v and g are the first gradient (line 1), which is sent whole.
TopK is of the whole vector, as in the paper. LPSs and the global server add the messages up as sparse vectors, exactly,
and what comes back is the mean of all c, by which the workers bring the mean of all g up to date, each by itself; in
the paper the server does that and sends the weights. Every message counts for good, so nobody can be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.costs import COSTS
from testbed.codecs.memory import Remembering
from testbed.codecs.sparse import Kept, Sparse, finite
from testbed.codecs.topk import TopK, ValueKind
from testbed.layout import Layout
from testbed.message import Message
from testbed.systems.protocols.base import Knob, Options
from testbed.systems.protocols.codec_system import CodecSystem, Sender, WorkerState
from testbed.systems.protocols.replica import Replica, ServerState
from testbed.types import Fraction, Share
from testbed.workloads.optimizer import Optimizer


class EF21Options(Options, frozen=True, forbid_unknown_fields=True):
    """The algorithm's settings.

    Parameters
    ----------
    kept : K, as a fraction of all elements
    momentum : 1 - eta
    values : how the values of c travel; what rounding leaves out stays in v - g
    """

    kept: Share = 0.01
    momentum: Fraction = 0.9
    values: ValueKind = "float32"


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


@dataclass
class Worker(WorkerState):
    """A worker's parameters, its codec's memory, and the mean of all workers' estimates."""

    mean: Any = None


class EF21(CodecSystem):
    name = "ef21"
    tolerant = False
    own_momentum = True
    options_type = EF21Options
    knobs: ClassVar[Mapping[str, Knob]] = {"kept": Knob(choices=(0.001, 0.01, 0.1))}
    options: EF21Options

    def codec(self, sender: Sender) -> Codec | Remembering:
        whole = Layout.of([("model", (self.task.layout.size,))])
        if sender != "worker":
            return Sparse(whole)
        return Changes(whole, self.options.kept, self.options.values, self.options.momentum)

    def optimizer(self) -> Optimizer:
        """Plain SGD; an experiment with Adam keeps it."""
        return self.task.training.optimizer.without_momentum

    def initial_state(self, name: str) -> WorkerState | ServerState:
        state = super().initial_state(name)
        return Worker(**vars(state), mean=torch.zeros_like(state.weights)) if isinstance(state, WorkerState) else state

    def take(self, replica: Replica, answer: Message, step: int) -> None:
        assert isinstance(replica, Worker)
        self.codecs["gs"].add(answer.buffers, replica.mean)  # type: ignore[attr-defined]
        replica.update(self.task, replica.mean, step, self.optimizer())
