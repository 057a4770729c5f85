"""Stands on a node before a run: says whether it can take part, and measures what joins it to others. A Ray actor.

Theory of operation
1. Between two nodes there is one connection of the kind that roles will have (`doors`), with one end echoing.
2. The round trip is the shortest of small messages', one after the other, on a connection that is warm: whatever the
   nodes and the way are busy with besides can only add to it (as BBR takes it). Some are sent before all else and
   some after each row of 3, for a node may be busy for as long as any one lot of them takes.
3. For the goodput a row of messages is sent that the other end answers when the last has come; what it took, less the
   round trip, is the row's. Rows grow until one takes long enough to tell, so that TCP's slow start is behind it; of
   a few such the fastest counts, for the same reason.
4. No node measures with two others at once; pairs that share none do at the same time (`links`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from testbed.errors import NetworkError
from testbed.fabrics.cluster import fitness
from testbed.fabrics.cluster.doors import Doors, Sign

PING, ROW, LAST = b"ping", b"row", b"last"
PINGS = 10  # before the rows, and as many after each of them
PIECE = bytes(1 << 18)
LONG_S = 1.0  # of a row that counts
ROWS = 3  # of which the fastest counts
GROWTH = 8  # of a row against the one before, at most
MOST_PIECES = 1 << 13  # 2 GiB
PATIENCE_S = 60.0  # for an answer


@dataclass(frozen=True)
class Measured:
    """What was found of the way from one node to another."""

    goodput_mbit: float
    rtt_ms: float


class Surveyor:
    """The actor; `address` is its node's."""

    def __init__(self, address: str, encrypted: bool, ports: tuple[int, int] | None) -> None:
        self._doors = Doors(address, encrypted, ports, max_bytes=2 * len(PIECE))
        self._echoing: list[asyncio.Task[None]] = []
        self._answers: dict[str, asyncio.Queue[bytes]] = {}

    def unfit(self, wanted: fitness.Facts, experiment: dict[str, Any]) -> str:
        """Why the node cannot take part; "" where it can."""
        return fitness.unfit(wanted, experiment, None)

    async def listen(self, peers: list[str]) -> Sign:
        """Open a socket for each of `peers`."""
        for peer in peers:
            self._doors.listen(peer)
        return self._doors.sign

    async def admit(self, keys: Mapping[str, bytes]) -> None:
        """Let these in, by their public keys."""
        for peer, key in keys.items():
            self._doors.admit(peer, key)

    async def dial(self, me: str, signs: Mapping[str, Sign]) -> None:
        """Connect, as `me`, to those whose signs these are; then answer whatever comes."""
        for peer, sign in signs.items():
            self._doors.dial(peer, sign.addresses[me], sign.key)
        for peer in self._doors.sockets:
            self._answers[peer] = asyncio.Queue()
            self._echoing.append(asyncio.create_task(self._echo(peer)))

    async def _echo(self, peer: str) -> None:
        socket = self._doors.sockets[peer]
        while True:
            kind, *_ = await socket.recv_multipart()
            if kind in (PING, LAST):
                await socket.send_multipart([b"to " + kind])
            elif kind.startswith(b"to "):
                self._answers[peer].put_nowait(kind)

    async def measure(self, peer: str) -> Measured:
        """What joins this node to that of `peer`.

        Raises
        ------
        NetworkError
            Nothing comes back.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._asked(peer, PING)  # until there is a connection
            rtt_s, pieces, rows_s = await self._shortest_trip(peer), 1, list[float]()
            while len(rows_s) < ROWS:
                took_s = max(await self._timed(peer, pieces) - rtt_s, 1e-6)
                rtt_s = min(rtt_s, await self._shortest_trip(peer))
                if rows_s or took_s >= LONG_S / 2 or pieces >= MOST_PIECES:
                    rows_s.append(took_s)
                else:
                    pieces = min(max(pieces + 1, round(pieces * min(LONG_S / took_s, GROWTH))), MOST_PIECES)
            return Measured(8e-6 * pieces * len(PIECE) / min(rows_s), 1e3 * rtt_s)
        except TimeoutError:
            raise NetworkError(f"nothing comes back from {peer} for {PATIENCE_S:g} s") from None

    async def _shortest_trip(self, peer: str) -> float:
        return min([await self._timed(peer, 0) for _ in range(PINGS)])

    async def _timed(self, peer: str, pieces: int) -> float:
        """Seconds from the start of a row of so many messages to the answer; of none, of a small one."""
        async with asyncio.timeout(PATIENCE_S):
            began_s = monotonic()
            for _ in range(pieces):
                await self._doors.sockets[peer].send_multipart([ROW, PIECE], copy=False)
            await self._asked(peer, LAST if pieces else PING)
            return monotonic() - began_s

    async def _asked(self, peer: str, kind: bytes) -> None:
        await self._doors.sockets[peer].send_multipart([kind])
        await self._answers[peer].get()

    async def close(self) -> None:
        """Close the sockets."""
        for task in self._echoing:
            task.cancel()
        self._doors.close()
