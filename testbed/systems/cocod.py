"""CoCoD-SGD: local SGD that goes on while the mean is on its way, and keeps what it does meanwhile (Shen et al., 2019).

arXiv 1906.12043, IJCAI 2019, Algorithm 1. Every H steps each copy tells its weights x and trains on from them at once.
When the next H steps are over, the mean of what all have told has come, and those steps are made to it instead:

    told x at t;  after H steps from x:  x(t + H) = mean over all of x(t) + (x(t + H) - x(t) as trained)

so that nobody waits while H steps take longer than the mean, and no step is lost; what a mean says is H steps old.

Decisions: a copy is a region's in the tree and a worker's in the flat topology, and the mean is a server's, where the
paper has an all-reduce. Momentum stays with the copy. Shares of a batch are equal: the paper's, by a machine's speed,
are for machines that differ. At the end the result is the mean of the copies, which the last mean would not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from testbed.message import Message
from testbed.roles.node import Node
from testbed.systems.protocols.base import Knob
from testbed.systems.protocols.copies import CopiesOptions, CopiesSystem
from testbed.systems.protocols.regional import Copy


@dataclass
class CopyState(Copy):
    """A copy that trains on from what it has told.

    Attributes
    ----------
    told, mean : weights of the last meeting, this copy's and all copies' mean, both [layout.size]
    waits : whether a mean is still to come
    """

    told: torch.Tensor
    mean: torch.Tensor
    waits: bool = False


class CoCoD(CopiesSystem):
    name = "cocod"
    options_type = CopiesOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"local_steps": Knob(choices=(5, 10, 20, 50))}

    def copy(self) -> CopyState:
        initial = self.task.initial
        return CopyState(*self.copy_parts(), told=initial.clone(), mean=initial.clone())

    async def meet(self, node: Node, state: CopyState, step: int) -> None:
        await self.rest(node, state)
        await node.compute(self.task.passes(5), self._move, state)
        buffers = await node.compute(self.task.encoding(self.floats), self.floats.encode, state.weights)
        await node.send(node.server, Message("weights", step, buffers))
        state.waits = True

    async def rest(self, node: Node, state: CopyState) -> None:
        """Take the mean of the meeting before, if there was one."""
        if state.waits:
            answer = await node.recv(node.server)
            charge = self.task.decoding(self.floats, answer)
            state.mean = await node.compute(charge, self.floats.decode, answer.buffers)
            state.waits = False

    async def answers(self, node: Node, messages: Sequence[Message], step: int) -> Sequence[Message]:
        charge = self.task.encoding(self.floats, self.task.adding(self.floats, messages))
        mean = Message("mean", step, await node.compute(charge, self._mean, messages))
        return [mean] * len(messages)

    def _move(self, state: CopyState) -> None:
        """Make the steps since the last meeting to the mean of it; the result is what is told at this one."""
        state.weights.add_(state.mean).sub_(state.told)
        state.told.copy_(state.weights)

    def _mean(self, messages: Sequence[Message]) -> list:
        return self.floats.encode(torch.stack([self.floats.decode(each.buffers) for each in messages]).mean(0))
