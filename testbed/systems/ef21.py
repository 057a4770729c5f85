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

import torch

from testbed.codecs.base import Codec
from testbed.codecs.changes import Changes
from testbed.codecs.memory import Remembering
from testbed.codecs.sparse import Sparse
from testbed.codecs.topk import ValueKind
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
class Worker(WorkerState):
    """A worker's parameters, its codec's memory, and the mean of all workers' estimates."""

    mean: Any = None


class EF21(CodecSystem):
    name = "ef21"
    tolerant = False
    own_momentum = True
    momentum_of = "mean"
    options_type = EF21Options
    of_all = (*CodecSystem.of_all, "mean")
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
