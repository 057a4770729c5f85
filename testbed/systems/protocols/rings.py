"""All-reduce over rings of workers, chunk by chunk.

In a ring of n each worker sends 1/n of the vector to the next one n - 1 times, adding what comes to its own, until it
holds the sum of one chunk (reduce-scatter), and n - 1 times more to hand the sums round (all-gather): every link
carries 2 (n - 1) / n of the vector, whatever n is (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from testbed.codecs import costs
from testbed.codecs.base import stretches
from testbed.codecs.floats import Float32
from testbed.layout import Layout
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import System


class Ring:
    """Sums one stretch of a flat vector over a ring of workers.

    Parameters
    ----------
    system : takes its codecs from here
    members : the workers in the order of the ring
    place : of the vector
    """

    def __init__(self, system: System, members: Sequence[str], place: slice) -> None:
        self.members = tuple(members)
        self._number = {name: number for number, name in enumerate(self.members)}
        size, count = place.stop - place.start, len(self.members)
        cuts = [size * k // count for k in range(count + 1)]
        lengths = [stop - start for start, stop in pairwise(cuts)]
        self.places = [slice(place.start + each.start, place.start + each.stop) for each in stretches(lengths)]
        self._codecs: list[Any] = [system.coder(Float32(Layout.of([("chunk", (length,))]))) for length in lengths]

    def chunk_of(self, name: str) -> slice:
        """The stretch of which worker `name` holds the sum after `reduce_scatter`."""
        return self.places[(self._number[name] + 1) % len(self.members)]

    async def reduce_scatter(self, node: Node, vector: torch.Tensor, step: int) -> None:
        """Add up the members' vectors, in place; each then has the sum in its `chunk_of`."""
        for sent, taken in self._turns(node, 0):
            await self._send(node, vector, "reduce", sent, step)
            message = await node.recv(self._at(node, -1))
            await node.compute(self._adding(taken), self._add, vector, taken, message)

    async def all_gather(self, node: Node, vector: torch.Tensor, step: int) -> None:
        """Hand round what each has the sum of, in place; all then have all of it."""
        for sent, taken in self._turns(node, 1):
            await self._send(node, vector, "gather", sent, step)
            self._put(vector, taken, await node.recv(self._at(node, -1)))

    def _turns(self, node: Node, first: int) -> list[tuple[int, int]]:
        """The numbers of the chunks that are sent and taken, turn by turn."""
        count = len(self.members)
        own = self._number[node.name] + first
        return [((own - turn) % count, (own - turn - 1) % count) for turn in range(count - 1)]

    def _at(self, node: Node, distance: int) -> str:
        return self.members[(self._number[node.name] + distance) % len(self.members)]

    async def _send(self, node: Node, vector: torch.Tensor, kind: str, chunk: int, step: int) -> None:
        buffers = self._codecs[chunk].encode(vector[self.places[chunk]])
        await node.send(self._at(node, 1), Message(kind, step, buffers))

    def _adding(self, chunk: int) -> Work:
        size = self.places[chunk].stop - self.places[chunk].start
        return Work(coding_nbytes=costs.COPY * costs.COSTS["float32"].add * size)

    def _add(self, vector: torch.Tensor, chunk: int, message: Message) -> None:
        vector[self.places[chunk]].add_(self._codecs[chunk].decode(message.buffers))

    def _put(self, vector: torch.Tensor, chunk: int, message: Message) -> None:
        vector[self.places[chunk]].copy_(self._codecs[chunk].decode(message.buffers))
