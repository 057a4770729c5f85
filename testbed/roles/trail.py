"""Where the time of a wait went: the trail of messages that led to its end.

A message ends a wait. Whoever sent it had perhaps waited for another message before, whose sender had waited, and so
on: these messages, each sent after the one before had arrived, are the trail. For as much of a wait as one of them was
on its way, the one who waited waited for a link; for the rest it waited for what others did in between.

1. A message carries a stamp: when it was sent, and its sender's trail. Stamps travel beside the messages, not in
   them: what is measured has no byte more for being measured.
2. A message that was there before it was asked for has ended no wait: the trail stays as it was.
3. Every coroutine of a role has a trail of its own. What work in the background waits for holds up nobody, unless a
   `Signal` ends a wait of another coroutine.
4. Links count only within a wait, so that they never overlap a role's own computing, and the parts of a step never
   add up to more than the step.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from testbed.message import Message

LONGEST = 8  # hops; the longest trail within a wait of a synchronous system has 4. What is older counts as waiting
Hop = tuple[float, float, bool]  # when a message was sent, when it arrived, whether it came from another region
Hops = tuple[Hop, ...]  # the oldest first
Stamp = tuple[float, Hops]  # when a message was sent, and its sender's trail
Parcel = tuple[Message, Stamp]


class Trail:
    """A coroutine's trail, and what its waits since `take` have spent on links.

    Attributes
    ----------
    lan_s, wan_s : seconds on the run's clock for which messages were on links inside and between regions
    """

    __slots__ = ("hops", "lan_s", "wan_s")

    def __init__(self, hops: Hops = ()) -> None:
        self.hops = hops
        self.lan_s = self.wan_s = 0.0

    def follow(self, hops: Hops, since_s: float) -> None:
        """A wait since `since_s` has ended with the last of `hops`."""
        self.hops = hops
        for sent_s, arrived_s, far in reversed(hops):
            if arrived_s <= since_s:
                break
            spent_s = arrived_s - (sent_s if sent_s > since_s else since_s)
            if far:
                self.wan_s += spent_s
            else:
                self.lan_s += spent_s

    def take(self) -> tuple[float, float]:
        """`lan_s` and `wan_s`, which begin at 0 again."""
        spent_s = self.lan_s, self.wan_s
        self.lan_s = self.wan_s = 0.0
        return spent_s


trail: ContextVar[Trail] = ContextVar("trail")  # the running coroutine's


def extended(stamp: Stamp, arrived_s: float, far: bool) -> Hops:
    """The trail of who waits for a message with `stamp` that arrives at `arrived_s`."""
    sent_s, hops = stamp
    return (*hops[1 - LONGEST :], (sent_s, arrived_s, far))


class Signal(asyncio.Event):
    """An event that hands its setter's trail to who waits for it, with `Node.wait`: it stands for a message.

    For waits that a message taken in the background ends; what waits for a plain event waits for no link.
    """

    hops: Hops = ()

    def set(self) -> None:
        self.hops = trail.get().hops
        super().set()
