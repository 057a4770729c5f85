"""The data plane: one ZeroMQ connection per pair of roles, in an emulation inside the role's own network namespace.

The endpoint nearer to the root of the tree binds, the other connects. A pair's sockets are DEALERs, which add
nothing to a message, so that what crosses the wire is `Message.nbytes` and TCP/IP's own headers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
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


class Wire(ABC):
    """The connections of one role; a subclass says how the stamp of a message gets to its receiver.

    Parameters
    ----------
    context : of the sockets; closed with them
    sockets : by peer, each bound or connected
    watched : the peers whose connections end a wait for them when they are lost
    node : takes what arrives
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        sockets: Mapping[str, zmq.asyncio.Socket],
        watched: Collection[str],
        node: Node,
    ) -> None:
        self._context, self._sockets, self._watched, self._node = context, dict(sockets), watched, node
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def _packed(self, peer: str, parcel: Parcel) -> list[bytes | memoryview]:
        """The frames to send, in the moment before they are sent."""

    @abstractmethod
    def _unpacked(self, peer: str, frames: list[memoryview]) -> Parcel | None:
        """What has come from `peer`, in the moment it has; None where that is nothing for the role."""

    async def start(self) -> None:
        """Warm every connection up in both directions, then deliver what arrives to the mailbox.

        A fresh TCP connection pays slow start on its first messages; step 0 must not.
        """
        async with asyncio.timeout(HANDSHAKE_S):
            await asyncio.gather(*(self._warm_up(socket) for socket in self._sockets.values()))
        for peer, socket in self._sockets.items():
            self._tasks.append(asyncio.create_task(self._receive(peer, socket)))
            if peer in self._watched:
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
        await self._sockets[peer].send_multipart(self._packed(peer, parcel), copy=False)

    async def _receive(self, peer: str, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart(copy=False)
            if (parcel := self._unpacked(peer, [frame.buffer for frame in frames])) is not None:
                self._node.arrived(peer, parcel)

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


class HostWire(Wire):
    """The connections of a role on a host of an emulated network, with the stamps in files that both ends map.

    Parameters
    ----------
    netns_pid : a process in the network namespace of the role's host
    endpoints : by peer
    node, max_bytes : as `Wire` and `dealer` take them
    """

    def __init__(self, netns_pid: int, endpoints: Mapping[str, Endpoint], node: Node, max_bytes: int) -> None:
        self._sent = {peer: Stamps(endpoint.sent) for peer, endpoint in endpoints.items()}
        self._received = {peer: Stamps(endpoint.received) for peer, endpoint in endpoints.items()}
        # ZeroMQ opens and reopens its TCP sockets in its I/O thread, which stays where it was started.
        with netns.enter(netns_pid):
            context = zmq.asyncio.Context(io_threads=1)
            sockets = {peer: dealer(context, max_bytes) for peer in endpoints}
            for peer, endpoint in endpoints.items():
                (sockets[peer].bind if endpoint.binds else sockets[peer].connect)(endpoint.address)
        super().__init__(context, sockets, tuple(endpoints), node)

    def _packed(self, peer: str, parcel: Parcel) -> list[bytes | memoryview]:
        message, stamp = parcel
        self._sent[peer].put(stamp)
        return message.frames()

    def _unpacked(self, peer: str, frames: list[memoryview]) -> Parcel | None:
        stamp = self._received[peer].take() or (self._node.now(), ())  # where it is lost, a hop of no length
        return Message.from_frames(frames), stamp

    def close(self) -> None:
        super().close()
        for stamps in (*self._sent.values(), *self._received.values()):
            stamps.close()
