"""A fluid model of the network: TCP connections share links max-min fairly.

1. A message is a flow of `nbytes` over the links of its path: the sender's LAN link up, the WAN link of the
   two regions where they differ, the receiver's LAN link down. Where the profile caps what a region sends or
   receives in all, that is one more link of each path that leaves or enters the region. A connection carries one
   message at a time, in order, and queues up to `QUEUE_MESSAGES` more.
2. At any instant every flow has its max-min fair rate. When flows start or end, only the flows that share
   links with the change, directly or through others, are given new rates, once for all changes of an instant.
3. The last byte arrives the path's one-way delay after it was sent. By default TCP costs nothing more; with the
   options of `wan.tcp` a connection sends in rounds of at most its window (see `Window`).
4. A link's rate is goodput: what TCP delivers. On the wire every 1448 bytes of it take 1514 bytes.
5. Over a link that is cut nothing is sent but the window that waits for it already, and afterwards nothing before TCP's
   next retransmission (see `outages`); then TCP's window has to grow again (see `Window`).
   A connection that is reset sends what had not arrived again, message by message, once a new one is open.
6. Hosts that do the same at the same moments can be one here (a fold): a flow to or from it counts for as many as it
   has members, and its LAN links, as fast as all of theirs, are one, "region/w0..w9>region"; a flow from a fold to
   itself is one from each member to the next.

Times are seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from testbed.errors import RunError
from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.fabrics.virtual.fair import max_min, reached
from testbed.fabrics.virtual.flows import Connection, Flow, Link
from testbed.fabrics.virtual.outages import Outages, Stall
from testbed.fabrics.virtual.window import Window
from testbed.message import SEGMENT_BYTES
from testbed.wan.plan import NetworkPlan, region_of
from testbed.wan.tcp import OPENED, Tcp, measured_s, window_bytes

QUEUE_MESSAGES = 8
OVER, ARRIVES, RESUMES, RETRIES, LOST = -1, -2, -3, -4, -5  # in the place of a flow's version


class Network:
    """All links of a plan and the flows on them, driven by the virtual loop.

    Parameters
    ----------
    folds : the members of each fold; messages to and from the first are to and from all of them
    patience_s : no message may be on its way for longer because of resets

    Attributes
    ----------
    links : by name, "src>dst", as `record.events.LinkBytes` names them
    messages : sent so far
    outages : the links that are cut, and the flows that wait for them
    """

    def __init__(
        self,
        plan: NetworkPlan,
        loop: VirtualLoop,
        tcp: Tcp | None = None,
        folds: Collection[Sequence[str]] = (),
        patience_s: float = inf,
    ) -> None:
        self.plan = plan
        self.links: dict[str, Link] = {}
        self._folds = {members[0]: members for members in folds}
        played_for = {member for members in folds for member in members[1:]}
        for host in plan.hosts:
            if host not in played_for:
                name, region = self._lan_name(host), region_of(host)
                self._add(f"{name}>{region}", plan.profile.lan.bytes_per_s, self._weight(host))
                self._add(f"{region}>{name}", plan.profile.lan.bytes_per_s, self._weight(host))
        for (src, dst), link in plan.wan.items():
            self._add(f"{src}>{dst}", link.bytes_per_s)
        self._egress, self._ingress = _caps(plan, "egress"), _caps(plan, "ingress")
        self._wan_delay_s = {pair: link.delay_s for pair, link in plan.wan.items()}
        self.messages = 0
        self.outages: Outages[Flow] = Outages()
        self._loop = loop
        self._tcp, self._patience_s = tcp or Tcp(), patience_s
        self._connections: list[Connection] = []
        self._changed: dict[Link, None] = {}
        # What is to come, a heap of (time, tie-break, version, flow): the bytes that a flow has left are sent if it
        # still has that version, its message arrives if the version is ARRIVES, its window opens if it is RESUMES, TCP
        # sends it again if it is RETRIES.
        self._events: list[tuple[float, int, int, Flow]] = []
        self._count = 0
        loop.drive(self)

    def _add(self, name: str, rate: float, times: int = 1) -> None:
        self.links[name] = Link(name, rate, times)

    def _weight(self, host: str) -> int:
        """How many hosts `host` stands for."""
        return len(self._folds.get(host, (host,)))

    def _lan_name(self, host: str) -> str:
        """What the LAN link of `host` is called, or that of all for which it stands."""
        members = self._folds.get(host)
        return host if members is None else f"{host}..{members[-1].partition('/')[2]}"

    def connect(self, src: str, dst: str, deliver: Callable[[Any], None]) -> Connection:
        """A connection from host `src` to host `dst`; `deliver` is called with each message as it arrives."""
        here, there = region_of(src), region_of(dst)
        path = [self.links[f"{self._lan_name(src)}>{here}"]]
        if here != there:
            path += [*self._egress.get(here, ()), self.links[f"{here}>{there}"], *self._ingress.get(there, ())]
        path.append(self.links[f"{there}>{self._lan_name(dst)}"])
        weight = max(self._weight(src), self._weight(dst))  # a server has one with each; a worker, one in its ring
        connection = Connection(tuple(path), deliver, (src, dst), weight)
        connection.delay_s = self._delay_s(here, there)
        if not self._tcp.is_free:
            connection.window = Window(self._tcp, self._rtt_s(connection))
        self._connections.append(connection)
        return connection

    def _delay_s(self, src: str, dst: str) -> float:
        """One way from a host in region `src` to one in `dst`."""
        return self.plan.profile.lan.delay_s + (self._wan_delay_s[src, dst] if src != dst else 0.0)

    def _rtt_s(self, connection: Connection) -> float:
        src, dst = connection.regions
        return self._delay_s(src, dst) + self._delay_s(dst, src)

    async def send(self, connection: Connection, message: Any, nbytes: int) -> None:
        """Queue a message; returns at once unless the queue is full, then when the message has a place in it."""
        self.messages += connection.weight
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

    def cut(self, src: str, dst: str, now_s: float) -> None:
        """Lose all that a WAN link is given from `now_s` on, to which the clock is about to jump.

        `src` and `dst` are regions, or hosts: then it is the connections between these that lose it.
        """
        self.outages.cut((src, dst), now_s)
        for flow in [connection.active for connection in self._connections]:
            if flow is not None and flow in flow.links[0].flows and self._blocked(flow):
                flow.advance(now_s)
                self._hold(flow)

    def _hold(self, flow: Flow) -> None:
        """Let what a window holds, which waits for the link already, get through, and no more."""
        window = float(self._window_bytes(flow.connection))
        if flow.left <= window:
            return
        self._windowed(flow.connection)
        flow.held += flow.left - window
        flow.left, flow.rate = window, 0.0
        flow.version += 1  # its end no longer stands
        self._changed[flow.links[0]] = None

    def heal(self, src: str, dst: str, now_s: float) -> None:
        """End a cut; what has stalled goes on when TCP tries again."""
        self.outages.heal((src, dst))
        for flow in self.outages.stalled:
            if not self._blocked(flow):
                alone = flow.left + flow.held <= SEGMENT_BYTES
                when_s = self.outages.retry_s(flow, now_s, self._measured_s(flow.connection), alone)
                self._push(when_s, RETRIES, flow)

    def _blocked(self, flow: Flow) -> bool:
        return self.outages.block(flow.connection.hosts, flow.connection.regions)

    def _retry(self, flow: Flow) -> None:
        if flow in self.outages.stalled and not self._blocked(flow):
            stall = self.outages.stalled.pop(flow)
            # Where only acknowledgements were lost, the timeout was spurious (RFC 5682), and the window is halved only.
            begins_anew = stall.lost and stall.timed_out
            self._windowed(flow.connection).lose(begins_anew, 2.0 * self._window_bytes(flow.connection))
            flow.left, flow.held = 0.0, flow.left + flow.held
            self._resume(flow)

    def _windowed(self, connection: Connection) -> Window:
        if connection.window is None:
            connection.window = Window(self._tcp, self._rtt_s(connection))
        return connection.window

    def _window_bytes(self, connection: Connection) -> int:
        """What is under way on a connection at most: the emulated network's receive window."""
        return window_bytes(self.plan.widest.get(connection.regions, self.plan.profile.lan))

    def _measured_s(self, connection: Connection) -> float:
        """The round trip that its TCP has measured."""
        bytes_per_s = min(link.rate / link.times for link in connection.links)
        return measured_s(self._rtt_s(connection), bytes_per_s, self._window_bytes(connection), connection.filled)

    def _stall(self, flow: Flow) -> None:
        """Take down since when `flow`, which now meets a link that is cut, has made no progress.

        Of one under way the last round is acknowledged a round trip after it was sent, and no more of it than had
        arrived when the way back was cut: then all of it arrives, and TCP hears of that after the outage.
        """
        connection, now_s = flow.connection, self._loop.time()
        since_s, lost = now_s, True
        if flow.left + flow.held < flow.nbytes:
            assert connection.window is not None
            src, dst = connection.regions
            back_cut_s = self.outages.cut_s(connection.hosts[::-1], connection.regions[::-1])
            heard_s = back_cut_s + self._delay_s(dst, src)
            last_s = connection.window.sent_s + self._rtt_s(connection)
            since_s, lost = min(heard_s, last_s), last_s <= heard_s
        self.outages.stalled[flow] = Stall(since_s, lost)

    def reset(self, one: str, other: str, now_s: float) -> int | None:
        """Reset the connection between two hosts at `now_s`, to which the clock is about to jump.

        Returns
        -------
        How many messages are sent again; None where they have no connection.

        Raises
        ------
        RunError
            One of them has been for longer than patience lasts.
        """
        ends = ((one, other), (other, one))
        concerned = [each for each in self._connections if each.hosts in ends]
        return sum(self._reopen(each, now_s) for each in concerned) if concerned else None

    def _reopen(self, connection: Connection, now_s: float) -> int:
        """Connect anew, and send what has not arrived again, ahead of what waits already; how many messages that is."""
        arriving = sorted(event for event in self._events if event[2] == ARRIVES and event[3].connection is connection)
        lost = [flow for *_, flow in arriving if flow.version != LOST]
        if (flow := connection.active) is not None:
            lost.append(flow)
            self.outages.stalled.pop(flow, None)
            if flow in flow.links[0].flows:
                flow.advance(now_s)
                self._leave(flow, 0.0)
        for flow in lost:
            flow.version = LOST
        rtt_s = self._rtt_s(connection)
        connection.window = Window(self._tcp, rtt_s)
        connection.window.begin()
        connection.open_s = now_s + OPENED * rtt_s
        connection.active = None
        connection.queue.extendleft((flow.message, flow.nbytes) for flow in reversed(lost))
        if connection.queue:
            self._start(connection, *connection.queue.popleft())
        if lost and connection.active is not None:
            connection.active.given_s = lost[0].given_s
            if now_s - lost[0].given_s > self._patience_s:
                since = f"a message of {connection.hosts[0]} has been on its way for {now_s - lost[0].given_s:.0f} s"
                raise RunError(f"{since}: its connection to {connection.hosts[1]} is reset again and again")
        return len(lost)

    def set_delay(self, src: str, dst: str, delay_s: float) -> None:
        """Change a WAN link's one-way delay for the messages whose last byte is still to be sent."""
        self._wan_delay_s[src, dst] = delay_s
        for connection in self._connections:
            here, there = connection.regions
            if (here, there) in ((src, dst), (dst, src)):
                connection.delay_s = self._delay_s(here, there)
                if connection.window is not None:
                    connection.window.rtt_s = self._rtt_s(connection)

    def wire_bytes(self, now_s: float, links: Collection[str] | None = None) -> dict[str, int]:
        """Bytes that have crossed each link (of `links`) until `now_s`, headers included; no rate may change before."""
        chosen = self.links if links is None else {name: self.links[name] for name in links}
        for flow in {flow: None for link in chosen.values() for flow in link.flows}:
            flow.advance(now_s)
        return {name: link.wire_bytes for name, link in chosen.items()}

    def _start(self, connection: Connection, message: Any, nbytes: int) -> None:
        connection.active = flow = Flow(connection, message, nbytes, self._loop.time())
        if connection.open_s > self._loop.time():
            flow.left, flow.held = 0.0, flow.left
            self._push(connection.open_s, RESUMES, flow)
        elif connection.window is not None:
            flow.left, flow.held = 0.0, flow.left
            self._resume(flow)
        else:
            self._join(flow)

    def _resume(self, flow: Flow) -> None:
        """Send what the window allows now, or wait until it opens."""
        window, now_s = flow.connection.window, self._loop.time()
        assert window is not None
        flow.left = window.take(flow.held, now_s)
        if flow.held and not flow.left:
            self._push(window.next_round_s, RESUMES, flow)
            return
        flow.held -= flow.left
        flow.rate, flow.since_s = 0.0, now_s
        self._join(flow)

    def _join(self, flow: Flow) -> None:
        if self._blocked(flow):
            self._stall(flow)
            return
        weight = flow.connection.weight
        for link in flow.links:
            link.flows[flow] = None
            link.load += weight
            self._changed[link] = None

    def _leave(self, flow: Flow, sent: float) -> None:
        """Take a flow off its links, on which `sent` bytes more have crossed."""
        weight = flow.connection.weight
        for link in flow.links:
            link.payload_bytes += sent * weight
            del link.flows[flow]
            link.load -= weight
            self._changed[link] = None

    def _finish(self, flow: Flow) -> None:
        """The bytes that `flow` had left are sent."""
        connection, now_s = flow.connection, self._loop.time()
        self._leave(flow, flow.left)
        if connection.window is not None:
            connection.window.sent(now_s)
            if flow.held:
                self._resume(flow)
                return
        flow.version = OVER
        if flow.nbytes > SEGMENT_BYTES:
            connection.filled = flow.nbytes if connection.window is None else min(flow.nbytes, connection.window.size)
        connection.arrived_s = max(connection.arrived_s, now_s + connection.delay_s)
        self._push(connection.arrived_s, ARRIVES, flow)
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
        while events and events[0][2] not in (ARRIVES, RESUMES, RETRIES, events[0][3].version):
            heapq.heappop(events)
        return events[0][0] if events else inf

    def advance(self) -> None:
        """End the flows, open the windows and deliver the messages that are due."""
        events = self._events
        now_s = self._loop.time()
        while events and events[0][0] <= now_s:
            _, _, version, flow = heapq.heappop(events)
            if flow.version == LOST:
                continue
            if version == ARRIVES:
                flow.connection.deliver(flow.message)
            elif version == RESUMES:
                self._resume(flow)
            elif version == RETRIES:
                self._retry(flow)
            elif version == flow.version:
                self._finish(flow)

    def _settle(self) -> None:
        """Give new rates to the flows that the changes of this instant reach."""
        now_s = self._loop.time()
        flows, links = reached(self._changed)
        self._changed = {}
        for flow, rate in max_min(flows, links).items():
            if rate == flow.rate:
                continue  # its end stands
            flow.advance(now_s)
            flow.rate = rate
            flow.version += 1
            self._push(now_s + flow.left / rate, flow.version, flow)

    def _push(self, when_s: float, version: int, flow: Flow) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, version, flow))


def _caps(plan: NetworkPlan, way: str) -> dict[str, list[Link]]:
    """By region, the link that stands for all it may send ("egress") or receive ("ingress"), where that is capped."""
    caps = {region: getattr(cap, f"{way}_mbit") for region, cap in plan.profile.caps.items()}
    return {region: [Link(f"{region} {way}", mbit * 1e6 / 8)] for region, mbit in caps.items() if mbit is not None}
