"""MuLoCo: DiLoCo with Muon for its inner optimizer, and outer gradients in 2 bits with error feedback.

Therien, Huang, Defazio, Rish and Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo" (2025), arXiv
2505.23725, Algorithm 1. Each copy makes H steps of Muon from the parameters theta that all agree on. What it has learnt
joins what its messages have left out so far, e:

    e <- decay e + theta - weights;  sent = C(e);  e <- e - sent;  g = C(mean(sent))
    all: u <- momentum u + g;  theta <- theta - rate (g + momentum u)

Decisions, from the authors' code (facebookresearch/MuLoCo, `quantized_outer_sgd.py`): C is their statistical quantizer,
and the mean is quantized again on its way back, as they simulate it. There `rate` also multiplies what joins e, so that
it counts twice; here it counts once, as in the algorithm. Muon, and which layers it trains, is in
`testbed.workloads.muon`; vectors, embeddings and the last layer are trained by the experiment's optimizer, in that code
AdamW at the same rate. All layers are in 2 bits; the code can leave norms and embeddings in float32. A copy is a
region's in the tree and a worker's in the flat topology. Steps after the last meeting stay local: the result is the
mean of the copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from testbed.codecs.base import Buffers
from testbed.codecs.statistical import Statistical
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Knob, Task
from testbed.systems.protocols.copies import CopiesOptions, CopiesSystem, Met
from testbed.types import Fraction, Share
from testbed.workloads.muon import EMBEDDINGS, MOMENTUM, Muon, MuonState
from testbed.workloads.optimizer import SGD, SGDState


class MuLoCoOptions(CopiesOptions, frozen=True, forbid_unknown_fields=True):
    """MuLoCo's settings.

    Parameters
    ----------
    local_steps : H; the paper has 30
    momentum : Muon's
    others_rate : rate of what Muon does not train, as a multiple of Muon's, which is the schedule's
    others : modules that are so although they hold inner matrices, by the first part of their names, spaced
    outer_rate, outer_momentum : of the outer Nesterov momentum
    decay : of what messages have left out
    bits, rows : of an element, and whether each row of a matrix has bins of its own
    """

    local_steps: Annotated[int, msgspec.Meta(ge=1)] = 30
    momentum: Fraction = MOMENTUM
    others_rate: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    others: str = EMBEDDINGS
    outer_rate: Annotated[float, msgspec.Meta(gt=0)] = 0.7
    outer_momentum: Fraction = 0.6
    decay: Share = 0.9
    bits: Literal[2, 4, 8] = 2
    rows: bool = False


@dataclass
class CopyState(Met):
    """A copy; `residual` e, and u of the outer momentum, both [layout.size]."""

    residual: torch.Tensor
    velocity: torch.Tensor


class MuLoCo(CopiesSystem):
    name = "muloco"
    own_momentum = True
    momentum_of = "unit"
    options_type = MuLoCoOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"local_steps": Knob(choices=(5, 10, 20, 50))}
    options: MuLoCoOptions

    def __init__(self, task: Task, options: MuLoCoOptions) -> None:
        super().__init__(task, options)
        self.codec = self.coder(Statistical(task.layout, options.bits, options.rows))
        others = self.task.training.optimizer
        self.muon = Muon(task.layout, others, options.others_rate, options.others.split(), options.momentum)
        self.outer = SGD(momentum=options.outer_momentum, nesterov=bool(options.outer_momentum))

    @property
    def update_work(self) -> Work:
        """An update by Muon."""
        return Work(nbytes=self.muon.nbytes, gemm_flops=self.muon.flops)

    def copy(self) -> CopyState:
        initial = self.task.initial
        step, weights, _, ema = self.copy_parts()
        learnt = initial.clone(), torch.zeros_like(initial), self.outer.start(initial).velocity
        return CopyState(step, weights, self.muon.start(weights), ema, *learnt)

    def apply(self, state: Any, gradient: torch.Tensor, step: int) -> None:
        """One update by Muon."""
        assert isinstance(state.optimizer, MuonState)
        self.muon.update(state.optimizer, state.weights, gradient, self.task.rate_at(step))
        if state.ema is not None:
            state.ema.update(state.weights)

    async def meet(self, node: Node, state: CopyState, step: int) -> None:
        buffers = await node.compute(self._telling, self._tell, state)
        await node.send(node.server, Message("outer", step, buffers))
        answer = await node.recv(node.server)
        taking = self.task.decoding(self.codec, answer) + self.task.passes(self.outer.passes + 2)
        await node.compute(taking, self._take, state, answer)

    async def answers(self, node: Node, messages: Sequence[Message], step: int) -> Sequence[Message]:
        charge = self.task.encoding(self.codec, self.task.adding(self.codec, messages))
        mean = Message("mean", step, await node.compute(charge, self._mean, messages))
        return [mean] * len(messages)

    def _telling(self, made: Buffers) -> Work:
        """The residual takes in what was learnt, is coded, and what is sent leaves it."""
        sent = Message("outer", 0, made)
        return self.task.encoding(self.codec, self.task.decoding(self.codec, sent) + self.task.passes(9))(made)

    def _tell(self, state: CopyState) -> Buffers:
        state.residual.mul_(self.options.decay).add_(state.outer).sub_(state.weights)
        buffers: Buffers = self.codec.encode(state.residual)
        state.residual.sub_(self.codec.decode(buffers))
        return buffers

    def _mean(self, messages: Sequence[Message]) -> Buffers:
        sent = [self.codec.decode(message.buffers) for message in messages]
        return self.codec.encode(torch.stack(sent).mean(0))

    def _take(self, state: CopyState, answer: Message) -> None:
        """The outer step that all make with the mean."""
        mean = self.codec.decode(answer.buffers)
        self.outer.update(SGDState(state.velocity), state.outer, mean, self.options.outer_rate)
        state.weights.copy_(state.outer)
