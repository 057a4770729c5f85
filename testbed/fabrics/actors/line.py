"""One role's connection to another: what is sent on it, what comes, and what becomes of both when it is reset."""

from __future__ import annotations

import asyncio
import os
import socket as tcp
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import pack

import numpy as np
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from testbed.fabrics.actors.stamps import Stamps
from testbed.message import Message
from testbed.roles.node import Node
from testbed.roles.trail import Parcel

WARM_UP = "warm-up"
WARM_UP_BYTES = 1 << 20
WARM_UP_MESSAGES = 4
TOLD_S = 10.0  # after which a connection that its far end has closed is lost, if nobody has told why: a fault would be
FREED_S, LOOK_S = 20.0, 2e-3  # for the address of a socket that was closed; it is closed in ZeroMQ's own thread


@dataclass(frozen=True)
class Endpoint:
    """Where the connection to one peer is made: `binds` here at `address`, or connects to it there.

    `sent` and `received` are the files in which the stamps of the messages to and from the peer are passed on.
    """

    address: str  # "tcp://10.0.0.1:5501"
    binds: bool
    sent: Path
    received: Path


class Line(ABC):
    """The connection to one peer; a subclass says how the stamp of a message gets to its receiver.

    Parameters
    ----------
    socket : bound or connected
    node : takes what arrives
    """

    watched = True  # a wait for the peer ends when the connection is lost
    told_s = 0.0  # later, for somebody may tell why meanwhile

    def __init__(self, peer: str, socket: zmq.asyncio.Socket, node: Node) -> None:
        self.peer, self.socket, self._node = peer, socket, node
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def _packed(self, parcel: Parcel) -> list[bytes | memoryview]:
        """The frames to send, in the moment before they are sent."""

    @abstractmethod
    def _unpacked(self, frames: list[memoryview]) -> Parcel | None:
        """What has come, in the moment it has; None where that is nothing for the role."""

    async def warm_up(self) -> None:
        """Send enough in both directions that a message costs what it will later, too."""
        payload = Message(WARM_UP, 0, [np.zeros(WARM_UP_BYTES, np.uint8)]).frames()

        async def send() -> None:
            for _ in range(WARM_UP_MESSAGES):
                await self.socket.send_multipart(payload, copy=False)

        async def receive() -> None:
            for _ in range(WARM_UP_MESSAGES):
                await self.socket.recv_multipart(copy=False)

        await asyncio.gather(send(), receive())

    def start(self) -> None:
        """Deliver what arrives from now on."""
        self._tasks = [asyncio.create_task(self._receive())]
        if self.watched:
            self._tasks.append(asyncio.create_task(self._watch()))

    async def send(self, parcel: Parcel) -> None:
        """Hand a message to ZeroMQ; waits while its queue is full."""
        await self.socket.send_multipart(self._packed(parcel), copy=False)

    async def _receive(self) -> None:
        while True:
            frames = await self.socket.recv_multipart(copy=False)
            if (parcel := self._unpacked([frame.buffer for frame in frames])) is not None:
                self._node.arrived(self.peer, parcel)

    async def _watch(self) -> None:
        """Tell the mailbox when the connection is lost: every later wait for this peer is in vain."""
        monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        with suppress(zmq.ZMQError):
            parse_monitor_message(await monitor.recv_multipart())
            await asyncio.sleep(self.told_s)
            self._node.mailbox.lose(self.peer, "the connection was lost")

    def stop(self) -> None:
        """Deliver nothing any more."""
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        self.stop()
        self.socket.disable_monitor()
        self.socket.close(linger=0)


class HostLine(Line):
    """A connection between hosts of an emulated network, with the stamps in files that both ends map.

    Parameters
    ----------
    open_socket : opens a socket at the endpoint, or raises ZMQError
    """

    def __init__(
        self, peer: str, endpoint: Endpoint, node: Node, open_socket: Callable[[], zmq.asyncio.Socket]
    ) -> None:
        self._endpoint, self._open = endpoint, open_socket
        self._sent, self._received = Stamps(endpoint.sent), Stamps(endpoint.received)
        super().__init__(peer, open_socket(), node)

    def _packed(self, parcel: Parcel) -> list[bytes | memoryview]:
        message, stamp = parcel
        self._sent.put(stamp)
        return message.frames()

    def _unpacked(self, frames: list[memoryview]) -> Parcel | None:
        stamp = self._received.take() or (self._node.now(), ())  # where it is lost, a hop of no length
        return Message.from_frames(frames), stamp

    def close(self) -> None:
        super().close()
        for stamps in (self._sent, self._received):
            stamps.close()


class Lasting(HostLine):
    """A connection that faults reset: the messages outlast it.

    1. A message is kept until the far end's role has taken it, which the stamps tell.
    2. `break_off` closes this end as a reset does: what is under way either way is lost, in ZeroMQ's queues, too.
    3. When both ends have, `connect_anew` opens a new connection, on which all messages that were lost are sent again,
       whole and in their order, before those that wait.
    """

    told_s = TOLD_S

    def __init__(
        self, peer: str, endpoint: Endpoint, node: Node, open_socket: Callable[[], zmq.asyncio.Socket]
    ) -> None:
        super().__init__(peer, endpoint, node, open_socket)
        self._kept: deque[Parcel] = deque()  # handed to ZeroMQ, and perhaps not taken
        self._waiting: deque[tuple[Parcel, asyncio.Future[None]]] = deque()
        self._more = asyncio.Event()

    def start(self) -> None:
        super().start()
        self._tasks.append(asyncio.create_task(self._pump()))

    async def send(self, parcel: Parcel) -> None:
        """Have a message sent; returns when its turn has come."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((parcel, turn))
        self._more.set()
        await turn

    async def _pump(self) -> None:
        for parcel in tuple(self._kept):
            await super().send(parcel)
        while True:
            while self._waiting:
                parcel, turn = self._waiting.popleft()
                if turn.done():  # who waited was killed
                    continue
                while len(self._kept) > self._sent.under_way:
                    self._kept.popleft()
                self._kept.append(parcel)
                turn.set_result(None)
                await super().send(parcel)
            self._more.clear()
            await self._more.wait()

    async def break_off(self) -> None:
        """Close this end at once, and wait until it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with self._ends() as ends:
            for end in ends:
                end.setsockopt(tcp.SOL_SOCKET, tcp.SO_LINGER, pack("ii", 1, 0))  # it is then closed by a reset
        self.socket.disable_monitor()
        self.socket.close(linger=0)
        async with asyncio.timeout(FREED_S):
            while self._is_open():
                await asyncio.sleep(LOOK_S)

    async def connect_anew(self) -> int:
        """Open a new connection once both ends have broken off; how many messages are sent again."""
        self._kept = deque(tuple(self._kept)[-self._sent.under_way :] if self._sent.under_way else ())
        self._sent.go_back()
        async with asyncio.timeout(FREED_S):
            while True:
                try:
                    self.socket = self._open()
                    break
                except zmq.ZMQError as error:
                    if error.errno != zmq.EADDRINUSE:
                        raise
                    await asyncio.sleep(LOOK_S)
        self.start()
        return len(self._kept)

    def _is_open(self) -> bool:
        with self._ends() as ends:
            return bool(ends)

    @contextmanager
    def _ends(self) -> Iterator[list[tcp.socket]]:
        """This process's TCP sockets of the connection."""
        host, _, port = self._endpoint.address.removeprefix("tcp://").rpartition(":")
        address, found = (host, int(port)), []
        with ExitStack() as opened:
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
                with suppress(OSError):  # closed meanwhile, or without a peer
                    if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                        end = opened.enter_context(tcp.socket(fileno=os.dup(int(name))))
                        if address == (end.getsockname() if self._endpoint.binds else end.getpeername()):
                            found.append(end)
            yield found
