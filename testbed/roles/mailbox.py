"""What has arrived at a role: messages wait here, one queue per peer, until a coroutine of the role reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from testbed.errors import PeerLost, ProtocolError
from testbed.message import Message
from testbed.roles.trail import Hops


class Mailbox:
    """Messages that arrived and were not yet taken, one queue per peer; at most one reader per peer."""

    def __init__(self, peers: Iterable[str]) -> None:
        self.queues: dict[str, deque[tuple[Message, Hops]]] = {peer: deque() for peer in peers}
        self._readers: dict[str, Reader] = {}
        self._lost: dict[str, str] = {}

    def deliver(self, peer: str, message: Message, hops: Hops = ()) -> None:
        """Take a message in, with the trail that ends with it, and wake whoever waits for `peer`."""
        self.queues[peer].append((message, hops))
        if (reader := self._readers.get(peer)) is not None:
            reader.wake(peer)

    def lose(self, peer: str, why: str) -> None:
        """Note that nothing more will come from `peer`."""
        self._lost[peer] = why
        if (reader := self._readers.get(peer)) is not None:
            reader.wake(peer)

    def check(self, peer: str) -> None:
        """Raise PeerLost when `peer` is gone and has left nothing unread."""
        if peer in self._lost and not self.queues[peer]:
            raise PeerLost(f"{peer}: {self._lost[peer]}")

    def take(self, peer: str) -> Message | None:
        """The next message of `peer` if it is there and nobody else waits for it."""
        queue = self.queues.get(peer)
        return queue.popleft()[0] if queue and peer not in self._readers else None

    def poke(self) -> None:
        """Let whoever waits look again at what it waits for."""
        for reader in set(self._readers.values()):
            reader.poke()

    def awaited(self) -> list[str]:
        """The peers somebody waits for."""
        return [peer for peer in self._readers if not self.queues[peer]]

    def open(self, peers: Sequence[str]) -> Reader:
        for peer in peers:
            if peer not in self.queues:
                raise ProtocolError(f"{peer} is not a neighbour; neighbours: {', '.join(self.queues)}")
            if peer in self._readers:
                raise ProtocolError(f"two coroutines read from {peer} at once")
        reader = Reader(self, peers)
        for peer in reader.peers:
            self._readers[peer] = reader
        return reader

    def close(self, peers: Iterable[str]) -> None:
        for peer in peers:
            del self._readers[peer]


class Reader:
    """Waits for messages of some peers and hands them out in the order they arrived."""

    __slots__ = ("_future", "_mailbox", "_ready", "peers")

    def __init__(self, mailbox: Mailbox, peers: Sequence[str]) -> None:
        self.peers = dict.fromkeys(peers)  # an ordered set: whom to wait for
        self._mailbox = mailbox
        self._ready: deque[str] = deque()
        for peer in peers:
            if queue := mailbox.queues[peer]:
                self._ready.extend([peer] * len(queue))
        self._future: asyncio.Future[None] | None = None

    def wake(self, peer: str) -> None:
        self._ready.append(peer)
        self.poke()

    def drop(self, peer: str) -> None:
        """Wait no longer for `peer`; what it sent since stays in its queue."""
        del self.peers[peer]
        self._mailbox.close((peer,))

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        while self._ready and self._ready[0] not in self.peers:
            self._ready.popleft()
        return bool(self._ready)

    async def change(self) -> None:
        """Wait until something has arrived, a connection is gone, or `poke`."""
        for peer in self.peers:
            self._mailbox.check(peer)
        self._future = asyncio.get_running_loop().create_future()
        await self._future
        self._future = None

    def poke(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait until `ready`."""
        while not self.ready:
            await self.change()

    def take(self) -> tuple[str, Message, Hops]:
        """The next message of a reader that is ready: of whom it is, and the trail that ends with it.

        Raises
        ------
        PeerLost
            What made it ready is that the connection is gone.
        """
        peer = self._ready.popleft()
        self._mailbox.check(peer)
        return peer, *self._mailbox.queues[peer].popleft()

    def close(self) -> None:
        self._mailbox.close(self.peers)
