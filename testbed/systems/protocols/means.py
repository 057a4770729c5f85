"""Workers that need means of float32 vectors, one after the other in a step: over servers, or over a ring.

A system names the kinds of its vectors with a layout each, and its workers then ask for the `mean` of one. Over servers
an LPS adds up what its region sends, the global server divides the sum of all, and its answer is passed on. All wait
for all: what a worker keeps between two means of a step is known to nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from testbed.codecs.floats import Float32
from testbed.errors import ProtocolError
from testbed.layout import Layout
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import System, Task
from testbed.systems.protocols.replica import ServerState
from testbed.systems.protocols.rings import Ring, RingOptions


class Means(System):
    """Over the servers of the tree or of the flat topology; a subclass adds the worker.

    Parameters
    ----------
    layouts : of the kinds of vectors, in the order in which a step asks for their means
    """

    alike = True

    def __init__(self, task: Task, options: Any, layouts: Mapping[str, Layout]) -> None:
        super().__init__(task, options)
        self.layouts = layouts
        self.codecs = {kind: self.coder(Float32(layout), kind) for kind, layout in layouts.items()}

    async def mean(self, node: Node, kind: str, vector: torch.Tensor, step: int) -> torch.Tensor:
        """The mean of all workers' vectors of a kind; `vector` may become it."""
        codec = self.codecs[kind]
        buffers = await node.compute(self.task.encoding(codec), codec.encode, vector)
        await node.send(node.server, Message(kind, step, buffers))
        answer = await node.recv(node.server)
        return await node.compute(self.task.decoding(codec, answer), codec.decode, answer.buffers)

    async def lps(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            for kind in self.codecs:
                messages = await node.collect(node.clients)
                await node.send(node.server, await self._added(node, kind, messages, step, 1))
                await node.broadcast(node.clients, await node.recv(node.server))

    async def global_server(self, node: Node, state: ServerState) -> None:
        workers = len(self.task.roles.workers)
        async for step in node.steps(state):
            for kind in self.codecs:
                messages = await node.collect(node.clients)
                await node.broadcast(node.clients, await self._added(node, kind, messages, step, workers))

    async def _added(self, node: Node, kind: str, messages: Sequence[Message], step: int, over: int) -> Message:
        """The sum of messages divided by `over`."""
        codec = self.codecs[kind]
        charge = self.task.encoding(codec, self.task.adding(codec, messages))
        return Message(kind, step, await node.compute(charge, _sum, codec, messages, over))


class RingMeans(Means):
    """Over one ring of all workers, whose options these are."""

    alike = False
    peers = "ring"

    def __init__(self, task: Task, options: RingOptions, layouts: Mapping[str, Layout]) -> None:
        super().__init__(task, options, layouts)
        places = {kind: slice(0, layout.size) for kind, layout in layouts.items()}
        self.rings = {kind: Ring(self, task.roles.workers, place, options) for kind, place in places.items()}

    async def mean(self, node: Node, kind: str, vector: torch.Tensor, step: int) -> torch.Tensor:
        await self.rings[kind].reduce_scatter(node, vector, step)
        await self.rings[kind].all_gather(node, vector, step)
        dividing = Work(nbytes=8.0 * self.layouts[kind].size)
        return await node.compute(dividing, vector.div_, len(self.task.roles.workers))

    async def lps(self, node: Node, state: Any) -> None:
        raise ProtocolError(f"{node.name}: {self.name} has no servers")

    global_server = lps


def _sum(codec: Any, messages: Sequence[Message], over: int) -> Any:
    total = codec.decode(messages[0].buffers)
    for message in messages[1:]:
        total.add_(codec.decode(message.buffers))
    return codec.encode(total.div_(over))
