"""What has come to a role that goes on with other work meanwhile: messages wait here, from several peers, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from math import inf

from testbed.message import Message
from testbed.roles.node import Node
from testbed.roles.trail import Signal


class Inbox:
    """Messages with their senders and when they came, taken in in the background while the segment lasts.

    `others`: who else than clients and the server sends any.
    """

    def __init__(self, node: Node, others: Iterable[str] = ()) -> None:
        for peer in node.clients:
            node.spawn_server(self._fill(node, peer))
        if node.roles.server_of(node.name) is not None:
            node.spawn_server(self._fill(node, node.server))
        for peer in others:
            node.spawn_server(self._fill(node, peer))
        self.items: deque[tuple[str, Message, float]] = deque()
        self._came, self._has_ended = Signal(), False

    async def _fill(self, node: Node, peer: str) -> None:
        """Take in what comes until the peer's segment is over, which wakes whoever waits, too."""
        async for _, message in node.serve((peer,)):
            self.items.append((peer, message, node.now()))
            self._came.set()
        self._has_ended = True
        self._came.set()

    async def next(self, node: Node, what: str, deadline_s: float = inf) -> tuple[str, Message, float] | None:
        """The next message; None where a peer has ended its segment since the last None, or the deadline is over."""
        if not (self.items or self._has_ended):
            self._came.clear()
            if deadline_s == inf:
                await node.wait(self._came, what)
            else:
                with suppress(TimeoutError):
                    async with node.timeout(max(deadline_s - node.now(), 0.0)):
                        await node.wait(self._came, what)
        if self.items:
            return self.items.popleft()
        self._has_ended = False
        return None
