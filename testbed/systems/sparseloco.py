"""SparseLoCo: local training, and error feedback in the place of DiLoCo's outer momentum (Sarfi et al., 2025).

arXiv 2508.15706, Algorithm 1. Each copy trains for H steps with the inner optimizer from the parameters theta that all
agree on. What it has learnt is added to what it has not told yet, e, of which it sends the largest elements:

    e <- decay e + theta - weights;  sent = quantize(TopK(e));  e <- e - sent;  all: theta <- theta - rate mean(sent)

Decisions: a copy is a region's in the tree and a worker's in the flat topology. Messages are exchanged whole, as the
paper's all-gather does it: the global server passes on to each the others'. TopK is of runs of 4,096 elements of a
layer as it lies in memory, in the authors' code of blocks of 64 x 64; the mean is over all copies, as in Algorithm 1,
where that code divides by those that sent an element. Steps after the last meeting stay local: the result is the mean
of the copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import msgspec
import torch

from testbed.codecs import costs
from testbed.codecs.base import Buffers, Key, WireBuffers
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.memory import adder
from testbed.errors import ProtocolError
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Knob, Task
from testbed.systems.protocols.copies import CopiesOptions, CopiesSystem, Met
from testbed.types import Count, Share


class SparseLoCoOptions(CopiesOptions, frozen=True, forbid_unknown_fields=True):
    """SparseLoCo's settings.

    Parameters
    ----------
    local_steps : H; the paper has 15 to 250
    outer_rate : of the step with the mean
    decay : of what has not been told yet; 1 keeps all of it
    kept : the fraction of a chunk's elements that is sent; the paper has 0.8 to 3.1 %
    chunk : elements of a chunk
    values : what they travel as
    """

    outer_rate: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    decay: Share = 0.95
    kept: Share = 1 / 64
    chunk: Count = 4096
    values: Literal["2-bit", "float32"] = "2-bit"


@dataclass
class CopyState(Met):
    """A copy and its `residual` e [layout.size], what it has not told yet."""

    residual: torch.Tensor


class SparseLoCo(CopiesSystem):
    name = "sparseloco"
    options_type = SparseLoCoOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"local_steps": Knob(choices=(5, 10, 20, 50))}
    options: SparseLoCoOptions

    def __init__(self, task: Task, options: SparseLoCoOptions) -> None:
        super().__init__(task, options)
        codec = ChunkedTopK(task.layout, options.kept, options.chunk, exact=options.values == "float32")
        self.codec = self.coder(codec, "outer")

    @property
    def folds(self) -> bool:
        """As others, in a tree; workers that are copies are each told of the others alone."""
        return bool(self.task.roles.lpss) and super().folds

    def copy(self) -> CopyState:
        initial = self.task.initial
        return CopyState(*self.copy_parts(), outer=initial.clone(), residual=torch.zeros_like(initial))

    async def meet(self, node: Node, state: CopyState, step: int) -> None:
        key = Key(self.task.seed, self.task.roles.stream_of(node.name), step)
        buffers = await node.compute(self._telling, self._tell, state, key)
        await node.send(node.server, Message("outer", step, buffers))
        answer = await node.recv(node.server)
        told = self._all_told(node.name, buffers, answer)
        await node.compute(self._adding(told) + self.task.passes(5), self._take, state, told)

    async def answers(self, node: Node, messages: Sequence[Message], step: int) -> Sequence[Message]:
        def of_others(own: Message) -> Buffers:
            return [buffer for message in messages if message is not own for buffer in message.buffers]

        return [Message("others", step, of_others(message)) for message in messages]

    def _telling(self, made: Buffers) -> Work:
        """The residual takes in what was learnt, is coded, and what is sent leaves it."""
        sent = Message("outer", 0, made)
        return self.task.encoding(self.codec, self.task.decoding(self.codec, sent) + self.task.passes(9))(made)

    def _tell(self, state: CopyState, key: Key) -> Buffers:
        state.residual.mul_(self.options.decay).add_(state.outer).sub_(state.weights)
        buffers: Buffers = self.codec.encode(state.residual, key)
        state.residual.sub_(self.codec.decode(buffers))
        return buffers

    def _all_told(self, name: str, own: Buffers, answer: Message) -> list[WireBuffers]:
        """What each copy has sent, in the order of the copies, so that all add up alike."""
        parts, others = len(own), len(self.holders) - 1
        if len(answer.buffers) != parts * others:
            raise ProtocolError(f"{len(answer.buffers)} buffers are not the messages of {others} other copies")
        told: list[WireBuffers] = [answer.buffers[start : start + parts] for start in range(0, parts * others, parts)]
        at = self.holders.index(name)
        return [*told[:at], own, *told[at:]]

    def _adding(self, told: Sequence[WireBuffers]) -> Work:
        nbytes = [costs.size_of(buffers) for buffers in told]
        return Work(coding_nbytes=costs.adding(self.codec, self.task.layout.size, nbytes))

    def _take(self, state: CopyState, told: Sequence[WireBuffers]) -> None:
        """The step that all make with the mean of what all have sent."""
        total, add = torch.zeros_like(state.outer), adder(self.codec)
        for buffers in told:
            add(buffers, total)
        state.outer.sub_(total, alpha=self.options.outer_rate / len(self.holders))
        state.weights.copy_(state.outer)
