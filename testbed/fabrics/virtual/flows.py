"""What the network model is made of: links, connections over them, and the message that each has on its way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from testbed.fabrics.virtual.window import Window
from testbed.message import FRAME_BYTES, SEGMENT_BYTES
from testbed.wan.plan import region_of

WIRE_PER_PAYLOAD = FRAME_BYTES / SEGMENT_BYTES


class Link:
    """One direction of a link, the flows on it now and how many they count for, and the payload that has crossed it.

    With `times`, it is as many links of that rate, all used alike.
    """

    __slots__ = ("flows", "load", "name", "payload_bytes", "rate", "times")

    def __init__(self, name: str, rate: float, times: int = 1) -> None:
        self.name = name
        self.rate = rate * times
        self.times = times
        self.flows: dict[Flow, None] = {}  # an ordered set: the order of rate changes must repeat
        self.load = 0
        self.payload_bytes = 0.0

    @property
    def wire_bytes(self) -> int:
        """What has crossed it, headers included."""
        return self.times * round(self.payload_bytes * WIRE_PER_PAYLOAD / self.times)


class Flow:
    """One message on its way: `left` bytes that are being sent, and `held` ones that wait for the window."""

    __slots__ = ("connection", "given_s", "held", "left", "links", "message", "nbytes", "rate", "since_s", "version")

    def __init__(self, connection: Connection, message: Any, nbytes: int, now_s: float) -> None:
        self.connection = connection
        self.links = connection.links
        self.message, self.nbytes = message, nbytes
        self.given_s = now_s  # when its connection first had its turn for it
        self.left = float(nbytes)
        self.held = 0.0
        self.rate = 0.0
        self.since_s = now_s  # `left` is as of this instant
        self.version = 0

    def advance(self, now_s: float) -> None:
        """Account for what has been sent at the current rate up to `now_s`."""
        sent = min(self.left, self.rate * (now_s - self.since_s))
        self.left -= sent
        self.since_s = now_s
        sent *= self.connection.weight
        for link in self.links:
            link.payload_bytes += sent


class Connection:
    """A TCP connection from one host to another; `window` is None where TCP costs nothing."""

    __slots__ = (
        "active",
        "arrived_s",
        "delay_s",
        "deliver",
        "filled",
        "hosts",
        "links",
        "open_s",
        "queue",
        "regions",
        "room",
        "weight",
        "window",
    )

    def __init__(
        self, links: tuple[Link, ...], deliver: Callable[[Any], None], hosts: tuple[str, str], weight: int = 1
    ) -> None:
        self.links = links
        self.weight = weight  # connections that this one stands for
        self.deliver = deliver
        self.hosts = hosts  # the sender and the receiver
        self.regions = (region_of(hosts[0]), region_of(hosts[1]))
        self.delay_s = 0.0
        self.filled = inf  # bytes of the last message of more than a segment; a connection that is new is warmed up
        self.open_s = 0.0  # from when on it takes bytes
        self.arrived_s = 0.0  # when the last message sent arrives; a delay that shrinks lets none overtake another
        self.window: Window | None = None
        self.active: Flow | None = None
        self.queue: deque[tuple[Any, int]] = deque()
        self.room: deque[asyncio.Future[None]] = deque()  # of the messages in the queue past QUEUE_MESSAGES
