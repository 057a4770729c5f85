"""All-reduce over rings of workers, segment by segment.

In a ring of n each worker sends 1/n of the vector to the next one n - 1 times, adding what comes to its own, until it
holds the sum of one chunk (reduce-scatter), and n - 1 times more to hand the sums round (all-gather): every link
carries 2 (n - 1) / n of the vector, whatever n is (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009).

How far a worker runs ahead decides how long that takes over a WAN. gloo, which torch's DistributedDataParallel uses on
CPUs, cuts a chunk into segments, at least two, of at most 1 MiB; a segment is sent once the receiver has said that it
waits for it, and it waits for two (gloo/allreduce.cc, `ring`; gloo/transport/tcp/pair.cc). So two segments cross a link
in each round trip at most, however fast the link is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import torch

from testbed.codecs import costs
from testbed.codecs.base import stretches
from testbed.codecs.floats import Float32
from testbed.layout import Layout
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Options, System

Take = Callable[[int, Message], Awaitable[None]]  # what is done with a segment that has come
READY = "ready"


class RingOptions(Options, frozen=True, forbid_unknown_fields=True):
    """How a ring's vectors are cut and sent; the defaults are gloo's.

    Parameters
    ----------
    segment_mib : no segment is longer, 2^20 bytes
    ahead : segments that a worker lets the one before it send until it has taken the first of them; 0: it need not let
        it, and chunks are not cut: a ring that only its links hold up
    """

    segment_mib: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    ahead: Annotated[int, msgspec.Meta(ge=0)] = 2


class Ring:
    """Sums one stretch of a flat vector over a ring of workers.

    Parameters
    ----------
    system : takes its codecs from here
    members : the workers in the order of the ring
    place : of the vector
    options : how it is cut and sent
    """

    def __init__(self, system: System, members: Sequence[str], place: slice, options: RingOptions) -> None:
        self.members = tuple(members)
        self._number = {name: number for number, name in enumerate(self.members)}
        self._ahead = options.ahead
        size, count = place.stop - place.start, len(self.members)
        self._pieces = self._pieces_of_a_chunk(4 * size, options.segment_mib * 2**20) if options.ahead else 1
        cuts = [size * k // (count * self._pieces) for k in range(count * self._pieces + 1)]
        lengths = [stop - start for start, stop in pairwise(cuts)]
        self.even = len(set(lengths)) == 1  # what is sent in a turn is as long with all
        self.places = [slice(place.start + each.start, place.start + each.stop) for each in stretches(lengths)]
        codecs = {length: system.coder(Float32(Layout.of([("segment", (length,))]))) for length in set(lengths)}
        self._codecs: list[Any] = [codecs[length] for length in lengths]

    def _pieces_of_a_chunk(self, nbytes: int, longest: float) -> int:
        return max(2, -int(-nbytes // (longest * len(self.members))))

    def chunk_of(self, name: str) -> slice:
        """The stretch of which worker `name` holds the sum after `reduce_scatter`."""
        chunk = (self._number[name] + 1) % len(self.members) * self._pieces
        return slice(self.places[chunk].start, self.places[chunk + self._pieces - 1].stop)

    async def reduce_scatter(self, node: Node, vector: torch.Tensor, step: int) -> None:
        """Add up the members' vectors, in place; each then has the sum in its `chunk_of`."""

        async def take(segment: int, message: Message) -> None:
            await node.compute(self._adding(segment), self._add, vector, segment, message)

        await self._go_round(node, vector, "reduce", 0, step, take)

    async def all_gather(self, node: Node, vector: torch.Tensor, step: int) -> None:
        """Hand round what each has the sum of, in place; all then have all of it."""

        async def take(segment: int, message: Message) -> None:
            self._put(vector, segment, message)

        await self._go_round(node, vector, "gather", 1, step, take)

    async def _go_round(self, node: Node, vector: torch.Tensor, kind: str, first: int, step: int, take: Take) -> None:
        """Send and take each segment but a chunk's, those taken in one turn being sent in the next."""
        turns, before, after = self._turns(node, first), self._at(node, -1), self._at(node, 1)
        total = len(turns)
        waited_for = allowed = 0 if self._ahead else total  # of the one before, by the one after
        sent = taken = 0
        while sent < total or taken < total:
            if waited_for < min(total, min(sent, taken) + self._ahead):
                await node.send(before, Message(READY, step))
                waited_for += 1
            elif sent < min(allowed, waited_for, taken + self._pieces):
                await self._send(node, vector, kind, turns[sent][0], step)
                sent += 1
            else:
                owe = {before: taken < total, after: allowed < total or (before == after and taken < total)}
                _, message = await node.recv_any([peer for peer, owes in owe.items() if owes])
                if message.kind == READY:
                    allowed += 1
                else:
                    await take(turns[taken][1], message)
                    taken += 1

    def _turns(self, node: Node, first: int) -> list[tuple[int, int]]:
        """The numbers of the segments that are sent and taken, one after the other."""
        count, pieces = len(self.members), self._pieces
        own = self._number[node.name] + first
        return [
            ((own - turn) % count * pieces + piece, (own - turn - 1) % count * pieces + piece)
            for turn in range(count - 1)
            for piece in range(pieces)
        ]

    def _at(self, node: Node, distance: int) -> str:
        return self.members[(self._number[node.name] + distance) % len(self.members)]

    async def _send(self, node: Node, vector: torch.Tensor, kind: str, segment: int, step: int) -> None:
        buffers = self._codecs[segment].encode(vector[self.places[segment]])
        await node.send(self._at(node, 1), Message(kind, step, buffers))

    def _adding(self, segment: int) -> Work:
        size = self.places[segment].stop - self.places[segment].start
        return Work(coding_nbytes=costs.COPY * costs.COSTS["float32"].add * size)

    def _add(self, vector: torch.Tensor, segment: int, message: Message) -> None:
        vector[self.places[segment]].add_(self._codecs[segment].decode(message.buffers))

    def _put(self, vector: torch.Tensor, segment: int, message: Message) -> None:
        vector[self.places[segment]].copy_(self._codecs[segment].decode(message.buffers))
