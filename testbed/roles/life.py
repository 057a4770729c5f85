"""The lives of a role that faults kill: it ends at once, what is sent to it is lost, and it may begin again.

What dies is the role's process, with its messages and, where it begins afresh, all that it remembered. Its machine and
its connections stay, so that nobody is told (a reduction: of a process that is killed TCP would tell the peers). A role
that is dead when a segment ends is at rest: its machine, which is the testbed's, sends its markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from math import inf
from typing import Any, Protocol

from testbed.message import Message
from testbed.roles.node import MARKER, Node
from testbed.roles.trail import Trail, trail
from testbed.roles.traits import OVER

Begin = Callable[["Death | None"], Coroutine[Any, Any, None]]


class Death(Protocol):
    """A role is dead from `at_s` to `until_s` on the run's clock; then it begins as it was, or `fresh`."""

    @property
    def at_s(self) -> float: ...

    @property
    def until_s(self) -> float: ...

    @property
    def fresh(self) -> bool: ...


class Deaths(Protocol):
    """When a role is dead, as `faults.Deaths` has it."""

    def at(self, now_s: float) -> Death | None:
        """The one that it is in."""

    def after(self, now_s: float) -> Death | None:
        """The next one."""


class Life:
    """What becomes of one role in one segment.

    Parameters
    ----------
    returns : whether the role knows how to take part again; else it is dead for the rest of the run
    """

    def __init__(self, node: Node, deaths: Deaths, returns: bool) -> None:
        self._node, self._deaths, self._returns = node, deaths, returns
        self.dead = False
        self._markers: dict[str, Message] = {}
        self._over = asyncio.Event()  # the segment is for those whom this role serves, or who serve it
        self._told_over = False  # by one of them, whenever that was
        node.fate = self

    def takes(self, peer: str, message: Message) -> bool:
        if message.kind == MARKER:
            self._markers[peer] = message
            if peer not in self._node.clients or len(self._markers) == len(self._node.neighbours):
                self._over.set()
        elif message.kind == OVER:
            self._told_over = True
            if self.dead:
                self._over.set()
            return False
        return not self.dead

    async def play(self, begin: Begin, stop_at: int) -> None:
        """Play the segment; `begin` makes the role's coroutine, given what it died of if it was dead."""
        node = self._node
        death, before = self._already(), None
        while True:
            if death is None:
                death = await self._live(begin(before), stop_at)
                if death is None:
                    return
            self.dead = True
            node.forget()
            if not await self._begins_again(death):
                await self._rest(stop_at)
                return
            self.dead = False
            for peer, marker in self._markers.items():
                node.mailbox.deliver(peer, marker)
            death, before = None, death

    def _already(self) -> Death | None:
        """What it has died of before this segment."""
        if self._returns:
            return self._deaths.at(self._node.now())
        first = self._deaths.after(-inf)
        return first if first is not None and first.at_s <= self._node.now() else None

    async def _live(self, role: Coroutine[Any, Any, None], stop_at: int) -> Death | None:
        """Play the role until the segment is over (None), or until it dies."""
        node, loop = self._node, asyncio.get_running_loop()
        playing = loop.create_task(node.play(role, stop_at))
        death = self._deaths.after(node.now())
        if death is None:
            await playing
            return None
        dying = loop.create_task(node.sleep(max(death.at_s - node.now(), 0.0)))
        try:
            await asyncio.wait({playing, dying}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done() or node.at_rest:
                await playing
                return None
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing
            return death
        finally:
            dying.cancel()
            playing.cancel()

    async def _begins_again(self, death: Death) -> bool:
        """Whether it does before the segment is over.

        Who was told so alive, and dies for good after it, is at rest; who dies for a while has something to end yet.
        """
        node, until_s = self._node, death.until_s if self._returns else inf
        if until_s == inf and self._told_over:
            return False
        try:
            async with nullcontext() if until_s == inf else node.timeout(max(until_s - node.now(), 0.0)):
                await self._over.wait()
        except TimeoutError:
            return True
        return False

    async def _rest(self, stop_at: int) -> None:
        """Come to rest in the place of the role."""
        node = self._node
        node.at_rest = True
        trail.set(Trail())
        await node.broadcast(node.neighbours, Message(MARKER, stop_at))
        while len(self._markers) < len(node.neighbours):
            self._over.clear()
            await self._over.wait()
        node.ledger.record_sent()


async def play(node: Node, begin: Begin, stop_at: int, deaths: Deaths | None, returns: bool) -> None:
    """Play one segment of a role, whatever kills it meanwhile."""
    if deaths is None:
        await node.play(begin(None), stop_at)
    else:
        await Life(node, deaths, returns).play(begin, stop_at)
