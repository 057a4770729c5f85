"""The data plane: one ZeroMQ connection per pair of roles, in an emulation inside the role's own network namespace.

The endpoint nearer to the root of the tree binds, the other connects. A pair's sockets are DEALERs, which add
nothing to a message, so that what crosses the wire is `Message.nbytes` and TCP/IP's own headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial

import zmq
import zmq.asyncio

from testbed.emulation import netns
from testbed.fabrics.actors.line import Endpoint, HostLine, Lasting, Line
from testbed.roles.node import Node
from testbed.roles.trail import Parcel

QUEUE_MESSAGES = 8
HANDSHAKE_S = 300.0  # a dilated network may take minutes for the warm-up traffic


def dealer(context: zmq.asyncio.Context, max_bytes: int) -> zmq.asyncio.Socket:
    """A socket for one peer, neither bound nor connected; frames over `max_bytes` are refused before allocation."""
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.set(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RECONNECT_IVL, 20)
    socket.set(zmq.IMMEDIATE, 1)
    return socket


class Wire:
    """The connections of one role.

    Parameters
    ----------
    context : of the sockets; closed with them
    lines : by peer
    """

    def __init__(self, context: zmq.asyncio.Context, lines: Mapping[str, Line]) -> None:
        self._context, self._lines = context, dict(lines)

    async def start(self) -> None:
        """Warm every connection up in both directions, then deliver what arrives to the mailbox.

        A fresh TCP connection pays slow start on its first messages; step 0 must not.
        """
        async with asyncio.timeout(HANDSHAKE_S):
            await asyncio.gather(*(line.warm_up() for line in self._lines.values()))
        for line in self._lines.values():
            line.start()

    async def send(self, peer: str, parcel: Parcel) -> None:
        """Hand a message to ZeroMQ; waits while its queue to `peer` is full."""
        await self._lines[peer].send(parcel)

    def lasting(self, peer: str) -> Lasting:
        """The connection to a peer, which is reset some time."""
        line = self._lines[peer]
        assert isinstance(line, Lasting)
        return line

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._context.term()


class HostWire(Wire):
    """The connections of a role on a host of an emulated network.

    Parameters
    ----------
    netns_pid : a process in the network namespace of the role's host
    endpoints : by peer
    node : takes what arrives
    max_bytes : larger frames are refused before they are allocated
    broken : the peers to whom connections are reset some time
    """

    def __init__(
        self,
        netns_pid: int,
        endpoints: Mapping[str, Endpoint],
        node: Node,
        max_bytes: int,
        broken: Collection[str] = (),
    ) -> None:
        self._netns_pid, self._max_bytes = netns_pid, max_bytes
        context = zmq.asyncio.Context(io_threads=1)
        lines: dict[str, Line] = {}
        for peer, endpoint in endpoints.items():
            kind = Lasting if peer in broken else HostLine
            lines[peer] = kind(peer, endpoint, node, partial(self._open, context, endpoint))
        super().__init__(context, lines)

    def _open(self, context: zmq.asyncio.Context, endpoint: Endpoint) -> zmq.asyncio.Socket:
        # ZeroMQ opens and reopens its TCP sockets in its I/O thread, which stays where it was started, with the first
        # socket; one that listens is made in the thread that binds it.
        with netns.enter(self._netns_pid):
            socket = dealer(context, self._max_bytes)
            try:
                (socket.bind if endpoint.binds else socket.connect)(endpoint.address)
            except zmq.ZMQError:
                socket.close(linger=0)
                raise
            return socket
