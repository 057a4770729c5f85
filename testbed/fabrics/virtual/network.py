"""A fluid model of the network: TCP connections share links max-min fairly.

1. A message is a flow of `nbytes` over the links of its path: the sender's LAN link up, the WAN link of the
   two regions where they differ, the receiver's LAN link down. A connection carries one message at a time,
   in order, and queues up to `QUEUE_MESSAGES` more.
2. At any instant every flow has its max-min fair rate. When flows start or end, only the flows that share
   links with the change, directly or through others, are given new rates, once for all changes of an instant.
3. The last byte arrives the path's one-way delay after it was sent. Connections are warm: the emulated run
   sends its warm-up traffic before step 0 and keeps its windows when idle, so there is no start-up ramp.
4. A link's rate is goodput: what TCP delivers. On the wire every 1448 bytes of it take 1514 bytes.

Times are seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.wan.plan import NetworkPlan, region_of

QUEUE_MESSAGES = 8
ARRIVES = -2
WIRE_PER_PAYLOAD = 1514 / 1448  # Ethernet, IP and TCP (with timestamps) headers of a full segment


class Link:
    """One direction of a link, the flows on it now and the payload bytes that have crossed it."""

    __slots__ = ("flows", "name", "payload_bytes", "rate")

    def __init__(self, name: str, rate: float) -> None:
        self.name = name
        self.rate = rate
        self.flows: dict[Flow, None] = {}  # an ordered set: the order of rate changes must repeat
        self.payload_bytes = 0.0


class Flow:
    """One message on its way."""

    __slots__ = ("connection", "left", "links", "message", "rate", "since_s", "version")

    def __init__(self, connection: Connection, message: Any, nbytes: int, now_s: float) -> None:
        self.connection = connection
        self.links = connection.links
        self.message = message
        self.left = float(nbytes)
        self.rate = 0.0
        self.since_s = now_s  # `left` is as of this instant
        self.version = 0

    def advance(self, now_s: float) -> None:
        """Account for what has been sent at the current rate up to `now_s`."""
        sent = min(self.left, self.rate * (now_s - self.since_s))
        self.left -= sent
        self.since_s = now_s
        for link in self.links:
            link.payload_bytes += sent


class Connection:
    """A warm TCP connection from one host to another."""

    __slots__ = ("active", "delay_s", "deliver", "links", "queue", "room")

    def __init__(self, links: tuple[Link, ...], delay_s: float, deliver: Callable[[Any], None]) -> None:
        self.links = links
        self.delay_s = delay_s
        self.deliver = deliver
        self.active: Flow | None = None
        self.queue: deque[tuple[Any, int]] = deque()
        self.room: deque[asyncio.Future[None]] = deque()  # of the messages in the queue past QUEUE_MESSAGES


class Network:
    """All links of a plan and the flows on them, driven by the virtual loop."""

    def __init__(self, plan: NetworkPlan, loop: VirtualLoop) -> None:
        self.plan = plan
        self.links: dict[str, Link] = {}
        for host in plan.hosts:
            region = region_of(host)
            self._add(f"{host}>{region}", plan.profile.lan.bytes_per_s)
            self._add(f"{region}>{host}", plan.profile.lan.bytes_per_s)
        for (src, dst), link in plan.wan.items():
            self._add(f"{src}>{dst}", link.bytes_per_s)
        self.messages = 0  # sent so far
        self._loop = loop
        self._changed: dict[Link, None] = {}
        # What is to come, a heap of (time, tie-break, version, flow): a flow's last byte leaves if it still has
        # that version, or arrives if the version is ARRIVES.
        self._events: list[tuple[float, int, int, Flow]] = []
        self._count = 0
        loop.drive(self)

    def _add(self, name: str, rate: float) -> None:
        self.links[name] = Link(name, rate)

    def connect(self, src: str, dst: str, deliver: Callable[[Any], None]) -> Connection:
        """A connection from host `src` to host `dst`; `deliver` is called with each message as it arrives."""
        here, there = region_of(src), region_of(dst)
        names = [f"{src}>{here}", f"{there}>{dst}"]
        delay_s = self.plan.profile.lan.delay_s
        if here != there:
            names.insert(1, f"{here}>{there}")
            delay_s += self.plan.wan[here, there].delay_s
        return Connection(tuple(self.links[name] for name in names), delay_s, deliver)

    async def send(self, connection: Connection, message: Any, nbytes: int) -> None:
        """Queue a message; returns at once unless the queue is full, then when the message has a place in it."""
        self.messages += 1
        if connection.active is None:
            self._start(connection, message, nbytes)
            return
        connection.queue.append((message, nbytes))
        if len(connection.queue) > QUEUE_MESSAGES:
            place: asyncio.Future[None] = self._loop.create_future()
            connection.room.append(place)
            await place

    def set_rate(self, src: str, dst: str, bytes_per_s: float) -> None:
        """Change a WAN link's rate now."""
        link = self.links[f"{src}>{dst}"]
        link.rate = bytes_per_s
        self._changed[link] = None

    def wire_bytes(self, now_s: float) -> dict[str, int]:
        """Bytes that have crossed each link until `now_s`, headers included; no rate may change before."""
        for flow in {flow: None for link in self.links.values() for flow in link.flows}:
            flow.advance(now_s)
        return {name: round(link.payload_bytes * WIRE_PER_PAYLOAD) for name, link in self.links.items()}

    def _start(self, connection: Connection, message: Any, nbytes: int) -> None:
        connection.active = flow = Flow(connection, message, nbytes, self._loop.time())
        for link in flow.links:
            link.flows[flow] = None
            self._changed[link] = None

    def _finish(self, flow: Flow) -> None:
        connection = flow.connection
        for link in flow.links:
            link.payload_bytes += flow.left
            del link.flows[flow]
            self._changed[link] = None
        flow.version = -1
        self._push(self._loop.time() + connection.delay_s, ARRIVES, flow)
        connection.active = None
        if connection.queue:
            self._start(connection, *connection.queue.popleft())
            if connection.room and not (place := connection.room.popleft()).done():  # done: its sender was cancelled
                place.set_result(None)

    def next_event_s(self) -> float:
        """When the next flow ends or message arrives; called when nothing more can change at this instant."""
        if self._changed:
            self._settle()
        events = self._events
        while events and events[0][2] not in (ARRIVES, events[0][3].version):
            heapq.heappop(events)
        return events[0][0] if events else inf

    def advance(self) -> None:
        """End the flows and deliver the messages that are due."""
        events = self._events
        now_s = self._loop.time()
        while events and events[0][0] <= now_s:
            _, _, version, flow = heapq.heappop(events)
            if version == ARRIVES:
                flow.connection.deliver(flow.message)
            elif version == flow.version:
                self._finish(flow)

    def _settle(self) -> None:
        """Give new rates to the flows that the changes of this instant reach."""
        now_s = self._loop.time()
        flows, links = _component(self._changed)
        self._changed = {}
        for flow, rate in _max_min(flows, links).items():
            if rate == flow.rate:
                continue  # its end stands
            flow.advance(now_s)
            flow.rate = rate
            flow.version += 1
            self._push(now_s + flow.left / rate, flow.version, flow)

    def _push(self, when_s: float, version: int, flow: Flow) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, version, flow))


def _component(changed: Iterable[Link]) -> tuple[dict[Flow, None], dict[Link, None]]:
    """The flows and links that `changed` links reach through shared flows."""
    links: dict[Link, None] = {}
    flows: dict[Flow, None] = {}
    stack = list(changed)
    while stack:
        link = stack.pop()
        if link in links:
            continue
        links[link] = None
        for flow in link.flows:
            if flow not in flows:
                flows[flow] = None
                stack.extend(flow.links)
    return flows, links


def _max_min(flows: dict[Flow, None], links: dict[Link, None]) -> dict[Flow, float]:
    """Max-min fair rates by progressive filling: the tightest link's flows are fixed first, then the next."""
    rates: dict[Flow, float] = {}
    room = {link: (link.rate, len(link.flows)) for link in links if link.flows}
    while len(rates) < len(flows):
        tightest = min(room, key=lambda link: room[link][0] / room[link][1])
        left, count = room.pop(tightest)
        share = max(left / count, 1e-3)  # a rate of zero would never end
        for flow in tightest.flows:
            if flow in rates:
                continue
            rates[flow] = share
            for link in flow.links:
                if link in room:
                    left, count = room[link]
                    if count == 1:
                        del room[link]
                    else:
                        room[link] = (left - share, count - 1)
    return rates
