"""The data plane: one ZeroMQ connection per pair of roles, its sockets inside the role's own network namespace.

The endpoint nearer to the root of the tree binds, the other connects. A pair's sockets are DEALERs, which add
nothing to a message, so that what crosses the wire is `Message.nbytes` and TCP/IP's own headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from testbed.emulation import netns
from testbed.fabrics.actors.stamps import Stamps
from testbed.message import Message
from testbed.roles.node import Node
from testbed.roles.trail import Parcel

QUEUE_MESSAGES = 8
WARM_UP = "warm-up"
WARM_UP_BYTES = 1 << 20
WARM_UP_MESSAGES = 4
HANDSHAKE_S = 300.0  # a dilated network may take minutes for the warm-up traffic


@dataclass(frozen=True)
class Endpoint:
    """Where the connection to one peer is made: `binds` here at `address`, or connects to it there.

    `sent` and `received` are the files in which the stamps of the messages to and from the peer are passed on.
    """

    address: str  # "tcp://10.0.0.1:5501"
    binds: bool
    sent: Path
    received: Path


class Wire:
    """The connections of one role.

    Parameters
    ----------
    netns_pid : a process in the network namespace of the role's host
    endpoints : by peer
    node : takes what arrives
    max_bytes : larger frames are refused before they are allocated
    """

    def __init__(self, netns_pid: int, endpoints: Mapping[str, Endpoint], node: Node, max_bytes: int) -> None:
        self._node = node
        self._sent = {peer: Stamps(endpoint.sent) for peer, endpoint in endpoints.items()}
        self._received = {peer: Stamps(endpoint.received) for peer, endpoint in endpoints.items()}
        self._sockets: dict[str, zmq.asyncio.Socket] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # ZeroMQ opens and reopens its TCP sockets in its I/O thread, which stays where it was started.
        with netns.enter(netns_pid):
            self._context = zmq.asyncio.Context(io_threads=1)
            for peer, endpoint in endpoints.items():
                self._sockets[peer] = self._open(endpoint, max_bytes)

    def _open(self, endpoint: Endpoint, max_bytes: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.SNDHWM, QUEUE_MESSAGES)
        socket.set(zmq.RCVHWM, QUEUE_MESSAGES)
        socket.set(zmq.MAXMSGSIZE, max_bytes)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RECONNECT_IVL, 20)
        socket.set(zmq.IMMEDIATE, 1)
        if endpoint.binds:
            socket.bind(endpoint.address)
        else:
            socket.connect(endpoint.address)
        return socket

    async def start(self) -> None:
        """Warm every connection up in both directions, then deliver what arrives to the mailbox.

        A fresh TCP connection pays slow start on its first messages; step 0 must not.
        """
        async with asyncio.timeout(HANDSHAKE_S):
            await asyncio.gather(*(self._warm_up(socket) for socket in self._sockets.values()))
        for peer, socket in self._sockets.items():
            self._tasks.append(asyncio.create_task(self._receive(peer, socket)))
            self._tasks.append(asyncio.create_task(self._watch(peer, socket)))

    async def _warm_up(self, socket: zmq.asyncio.Socket) -> None:
        payload = Message(WARM_UP, 0, [np.zeros(WARM_UP_BYTES, np.uint8)]).frames()

        async def send() -> None:
            for _ in range(WARM_UP_MESSAGES):
                await socket.send_multipart(payload, copy=False)

        async def receive() -> None:
            for _ in range(WARM_UP_MESSAGES):
                await socket.recv_multipart(copy=False)

        await asyncio.gather(send(), receive())

    async def send(self, peer: str, parcel: Parcel) -> None:
        """Hand a message to ZeroMQ; waits while its queue to `peer` is full."""
        message, stamp = parcel
        self._sent[peer].put(stamp)
        await self._sockets[peer].send_multipart(message.frames(), copy=False)

    async def _receive(self, peer: str, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart(copy=False)
            message = Message.from_frames([frame.buffer for frame in frames])
            stamp = self._received[peer].take() or (self._node.now(), ())  # where it is lost, a hop of no length
            self._node.arrived(peer, (message, stamp))

    async def _watch(self, peer: str, socket: zmq.asyncio.Socket) -> None:
        """Tell the mailbox when the connection is lost: every later wait for this peer is in vain."""
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        with suppress(zmq.ZMQError):
            parse_monitor_message(await monitor.recv_multipart())
            self._node.mailbox.lose(peer, "the connection was lost")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for socket in self._sockets.values():
            socket.disable_monitor()
            socket.close(linger=0)
        self._context.term()
        for stamps in (*self._sent.values(), *self._received.values()):
            stamps.close()
