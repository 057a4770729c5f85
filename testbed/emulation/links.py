"""How one direction of a link is shaped, set, read back, counted and changed.

An interface that sends into a link carries HTB: a class with the link's rate, and below it classes that have
next to no rate of their own and borrow from it, each with a byte-limited fifo:

    1: htb -- 1:1 the link's rate --+-- 1:2   TCP acknowledgements, always first
                                    +-- 1:10  data
                                    +-- 1:11  more data, where the link keeps several queues apart

HTB counts Ethernet frames, a profile states TCP goodput, so the rate is goodput * 1514 / 1448: a full packet is
1514 bytes on the wire (14 Ethernet, 20 IP, 32 TCP with timestamps) and carries 1448.

HTB lets a packet go when its transmission would begin, and lets a whole burst go at once after a pause. On a WAN
link the delay stage behind it (`delay`) holds every packet until its transmission would have ended, at the same
rate; there the burst cannot falsify a message's time and is chosen large enough for HTB to lose no rate to late
timers. A LAN link has no such stage: its burst is a quarter of a millisecond (`awake` tells when timers are later
than that), and hosts hand over no more packets at once than it carries in about half of one (`lan_segments`), or a
message would be early by all of the last segment.

Acknowledgements without data go first because the one fifo of a link stands for a path on which the other
direction's data would not be in their way: a pair's rate was measured as one direction's, while the queue here
belongs to the emulation (a whole window of a single connection, so that it loses nothing). Behind that queue an
acknowledgement would add its length to the round trip, and the window of the other direction, sized for the
profile's round trip, would no longer fill its link: with all pairs busy both ways 88 of 99 Mbit/s, with
acknowledgements first 98.8. They take of the link's rate like any packet. Where one direction is so much slower
that the acknowledgements of the other need all of it (1 to 40 or more), data on it waits, as behind any fifo.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyroute2 import IPRoute

from testbed.emulation import netns
from testbed.errors import NetworkError
from testbed.message import FRAME_BYTES
from testbed.message import SEGMENT_BYTES as PAYLOAD_BYTES
from testbed.wan.profile import Link
from testbed.wan.tcp import WINDOW_UNIT_BYTES, window_bytes

MAX_WIRE_BYTES_PER_S = 4_000_000_000  # HTB's rates are 32 bits of bytes per second where pyroute2 sets and reads them
MAX_GOODPUT_MBIT = MAX_WIRE_BYTES_PER_S * 8 / 1e6 * PAYLOAD_BYTES / FRAME_BYTES
MIN_WIRE_BYTES_PER_S = 26  # where a frame takes a minute, which is as long as HTB remembers that one was sent
MIN_GOODPUT_MBIT = MIN_WIRE_BYTES_PER_S * 8 / 1e6 * PAYLOAD_BYTES / FRAME_BYTES
QUANTUM_BYTES = 60_000  # of one queue's turn: not less than a segment, or queues with larger ones get more than others
WAN_BURST_S, LAN_BURST_S, LAN_SEGMENT_S = 4e-3, 0.25e-3, 0.6e-3
SEGMENT_BYTES = 65_536
# A LAN link's fifo takes the windows of five workers (and some) that send to their LPS at once.
LAN_WINDOW_BYTES = WINDOW_UNIT_BYTES << 2
LAN_QUEUE_BYTES = 8 * LAN_WINDOW_BYTES
ACK_QUEUE_BYTES = 1 << 18  # 4,000 acknowledgements
RUNNING = 0x10001  # IFF_UP and IFF_LOWER_UP
TICK_S = 64e-9  # the unit in which the kernel keeps burst sizes and netem delays

ROOT, LINK, ACKS, DATA = 0x10000, 0x10001, 0x10002, 0x10010  # tc handles 1:, 1:1, 1:2 and 1:10
# A class that only borrows: next to no rate of its own, and a ceiling that never holds it back.
BORROWED_BYTES_PER_S, BORROWED_BURST_BYTES = 1000, 1 << 20
# IP lengths of TCP segments without data and their TCP header's in words: with timestamps and 0 to 3 SACK blocks.
ACK_LENGTHS = ((52, 8), (64, 11), (72, 13), (80, 15))
ACK_FLAG, FLAGS_MASK = 0x10, 0xF03F  # TCP's data offset and flags; a segment with FIN, SYN, RST or PSH is none


@dataclass(frozen=True)
class Queue:
    """A fifo for data; `takes` are the packets that go there, as tc names them ("dst 10.2.0.0/16"; "": all)."""

    limit_bytes: int
    takes: str = ""


@dataclass(frozen=True)
class Shape:
    """What HTB and its fifos are set to on one interface; queues share the rate evenly among those with packets."""

    wire_bytes_per_s: int
    burst_bytes: int
    queues: tuple[Queue, ...]
    acks_first: bool = True

    @classmethod
    def of_wan(cls, link: Link, widest: Link | None = None) -> Shape:
        """For one direction between two regions, which may be made `widest` later."""
        rate = wire_bytes_per_s(link.goodput_mbit)
        return cls(rate, _burst(rate, WAN_BURST_S), (Queue(_wan_queue_bytes(widest or link)),))

    @classmethod
    def of_lan(cls, link: Link) -> Shape:
        """For either direction between a host and its router."""
        rate = wire_bytes_per_s(link.goodput_mbit)
        return cls(rate, _burst(rate, LAN_BURST_S), (Queue(LAN_QUEUE_BYTES),), acks_first=False)

    @classmethod
    def of_cap(cls, goodput_mbit: float, shared: Sequence[tuple[Link, str]]) -> Shape:
        """For what all WAN links of a region may carry together: a queue for each, as long as the link's own.

        Parameters
        ----------
        shared : each WAN link, as it is at its widest, and the packets that take it, as in `Queue.takes`
        """
        rate = wire_bytes_per_s(goodput_mbit)
        queues = tuple(Queue(_wan_queue_bytes(link), takes) for link, takes in shared)
        return cls(rate, _burst(rate, LAN_BURST_S), queues)

    def at(self, goodput_mbit: float) -> Shape:
        """The same WAN link at another rate; the queue stays, as a router's buffer does."""
        rate = wire_bytes_per_s(goodput_mbit)
        return replace(self, wire_bytes_per_s=rate, burst_bytes=_burst(rate, WAN_BURST_S))

    @property
    def fifos(self) -> dict[int, int]:
        """Class -> limit of its fifo in bytes."""
        acks = {ACKS: ACK_QUEUE_BYTES} if self.acks_first else {}
        return acks | {DATA + number: queue.limit_bytes for number, queue in enumerate(self.queues)}

    @property
    def filters(self) -> dict[int, int]:
        """Class -> how many filters lead to it, where any does."""
        acks = {ACKS: len(ACK_LENGTHS)} if self.acks_first else {}
        return acks | {DATA + number: 1 for number, queue in enumerate(self.queues) if queue.takes}


def wire_bytes_per_s(goodput_mbit: float) -> int:
    """Bytes per second on the wire, Ethernet headers included, that carry this TCP goodput (10^6 bit/s); 1 at least."""
    return max(1, round(goodput_mbit * 1e6 / 8 * FRAME_BYTES / PAYLOAD_BYTES))


def lan_segments(link: Link) -> int:
    """How many packets a host may hand over as one segment (GSO); 64 KB from 900 Mbit/s on."""
    return max(1, min(SEGMENT_BYTES // PAYLOAD_BYTES, int(link.bytes_per_s * LAN_SEGMENT_S / PAYLOAD_BYTES)))


def _wan_queue_bytes(link: Link) -> int:
    """One window (`wan.tcp.window_bytes`), which after a pause arrives at once: a connection alone loses nothing."""
    return window_bytes(link) * FRAME_BYTES // PAYLOAD_BYTES + SEGMENT_BYTES


def _burst(rate: int, seconds: float) -> int:
    return max(FRAME_BYTES, round(rate * seconds))


def tc_commands(interface: str, shape: Shape) -> list[str]:
    """The lines of a `tc -batch` that shape `interface`."""
    burst = f"burst {shape.burst_bytes}b cburst {shape.burst_bytes}b quantum {QUANTUM_BYTES}"
    borrowing = (
        f"htb rate {8 * BORROWED_BYTES_PER_S}bit ceil {8 * MAX_WIRE_BYTES_PER_S}bit burst {FRAME_BYTES}b"
        f" cburst {BORROWED_BURST_BYTES}b quantum {QUANTUM_BYTES}"
    )
    lines = [
        f"qdisc replace dev {interface} root handle 1: htb default {_minor(DATA)}",
        f"class add dev {interface} parent 1: classid 1:1 htb rate {8 * shape.wire_bytes_per_s}bit {burst}",
    ]
    for handle, limit_bytes in shape.fifos.items():
        minor = _minor(handle)
        lines += [
            f"class add dev {interface} parent 1:1 classid 1:{minor} {borrowing} prio {_priority(handle)}",
            f"qdisc add dev {interface} parent 1:{minor} handle {minor}: bfifo limit {limit_bytes}",
        ]
    return [*lines, *_filter_commands(interface, shape)]


def _filter_commands(interface: str, shape: Shape) -> list[str]:
    add = f"filter add dev {interface} parent 1: protocol ip prio"
    lines = []
    if shape.acks_first:
        for length, words in ACK_LENGTHS:
            header = f"match u16 {words << 12 | ACK_FLAG:#x} {FLAGS_MASK:#x} at 32"
            match = f"match ip protocol 6 0xff match u16 {length} 0xffff at 2 {header}"
            lines.append(f"{add} 1 u32 {match} flowid 1:{_minor(ACKS)}")
    for number, queue in enumerate(shape.queues):
        if queue.takes:
            lines.append(f"{add} 2 u32 match ip {queue.takes} flowid 1:{_minor(DATA + number)}")
    return lines


def _minor(handle: int) -> str:
    """The second half of a class's handle, as tc writes it."""
    return f"{handle & 0xFFFF:x}"


def _priority(handle: int) -> int:
    return 0 if handle == ACKS else 1


def batch(tool: str, pid: int, lines: Iterable[str]) -> None:
    """Run `ip -batch` or `tc -batch` in the network namespace of process `pid`.

    Raises
    ------
    NetworkError
        The tool refused a line.
    """
    with netns.enter(pid):
        done = subprocess.run(
            [tool, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise NetworkError(f"{tool} -batch: {' '.join(done.stderr.split())}")


def reset(pid: int, address: str) -> None:
    """Reset all TCP connections to an address in the network namespace of process `pid`.

    Raises
    ------
    NetworkError
        The kernel cannot.
    """
    with netns.enter(pid):
        line = ["ss", "--kill", "--tcp", "dst", address]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr.strip():
        raise NetworkError(f"connections to {address} cannot be reset: ss: {' '.join(done.stderr.split())}")


@dataclass(frozen=True)
class Counter:
    """What has left on one directed link since it was built; bytes are those on the wire, as tc counts them."""

    wire_bytes: int
    packets: int
    drops: int


@dataclass(frozen=True)
class Found:
    """What the kernel says of an interface; `fifos` and `filters` as those of a `Shape`."""

    wire_bytes_per_s: int
    burst_bytes: int
    fifos: dict[int, int]
    filters: dict[int, int]
    direct_packets: int  # that matched no class and passed unshaped


@dataclass(frozen=True)
class Netem:
    """What the kernel says of one netem; a rate of 0 is none."""

    delay_s: float
    bytes_per_s: int
    loss_percent: float
    jitter_s: float
    drops: int


class Namespace:
    """A netlink socket in one network namespace.

    All calls must come from the thread that made it: pyroute2 opens a further socket for every other thread, and
    that one would stand in whatever namespace the thread is in.
    """

    def __init__(self, pid: int) -> None:
        with netns.enter(pid):
            self._socket = IPRoute()
        self._index = {link.get_attr("IFLA_IFNAME"): link["index"] for link in self._socket.get_links()}
        self._name = {index: name for name, index in self._index.items()}

    def _qdiscs(self) -> list[Any]:
        """Those of the interfaces that were there when this was made; a program may have brought some of its own."""
        return [qdisc for qdisc in self._socket.get_qdiscs() if qdisc["index"] in self._name]

    def counters(self) -> dict[str, Counter]:
        """Per shaped interface what its HTB has sent (one netlink request for the whole namespace)."""
        found = {}
        for qdisc in self._qdiscs():
            if qdisc["handle"] == ROOT and qdisc.get_attr("TCA_KIND") == "htb":
                found[self._name[qdisc["index"]]] = _counter(qdisc)
        return found

    def shapes(self) -> dict[str, Found]:
        """Per interface how it is shaped; one without HTB, or without the link's class, is left out."""
        limits: dict[int, dict[int, int]] = {}  # interface -> class -> limit of its fifo
        direct: dict[int, int] = {}
        for qdisc in self._qdiscs():
            index, kind, options = qdisc["index"], qdisc.get_attr("TCA_KIND"), qdisc.get_attr("TCA_OPTIONS")
            if qdisc["handle"] == ROOT and kind == "htb":
                direct[index] = options.get_attr("TCA_HTB_INIT")["direct_pkts"]
            elif kind == "bfifo":
                limits.setdefault(index, {})[qdisc["parent"]] = _fifo_limit(options)
        found = {}
        for index, packets in direct.items():
            classes = {entry["handle"]: entry for entry in self._socket.get_classes(index=index)}
            fifos = {
                handle: limit
                for handle, limit in limits.get(index, {}).items()
                if handle in classes and _borrows(classes[handle])
            }
            if LINK in classes:
                filters = self._filters(index)
                found[self._name[index]] = Found(*_rate_and_burst(classes[LINK]), fifos, filters, packets)
        return found

    def _filters(self, index: int) -> dict[int, int]:
        """Class -> how many filters of an interface's HTB lead to it."""
        targets = [
            options.get_attr("TCA_U32_CLASSID")
            for entry in self._socket.get_filters(index=index, parent=ROOT)
            if (options := entry.get_attr("TCA_OPTIONS")) is not None
        ]
        return {target: targets.count(target) for target in targets if target is not None}

    def change(self, interface: str, shape: Shape) -> None:
        """Set another rate on running traffic: the link's class is changed in place, nothing queued is lost."""
        self._socket.tc(
            "change-class",
            "htb",
            self._index[interface],
            handle=LINK,
            parent=ROOT,
            rate=f"{8 * shape.wire_bytes_per_s}bit",
            burst=shape.burst_bytes,
            cburst=shape.burst_bytes,
            quantum=QUANTUM_BYTES,
        )

    def down(self) -> set[str]:
        """The interfaces that carry nothing: one of the two ends is down."""
        return {
            self._name[link["index"]]
            for link in self._socket.get_links()
            if link["index"] in self._name and link["flags"] & RUNNING != RUNNING
        }

    def interface(self, index: int) -> str:
        """What an interface is called; "" where there was none when this was made."""
        return self._name.get(index, "")

    def netems(self) -> dict[str, Netem]:
        """Per interface the netem at its root."""
        found = {}
        for qdisc in self._qdiscs():
            if qdisc["handle"] == ROOT and qdisc.get_attr("TCA_KIND") == "netem":
                options = qdisc.get_attr("TCA_OPTIONS")
                rate = options.get_attr("TCA_NETEM_RATE")
                found[self._name[qdisc["index"]]] = Netem(
                    options["delay"] * TICK_S,
                    rate["rate"] if rate else 0,
                    100 * options["loss"] / 2**32,
                    options["jitter"] * TICK_S,
                    _counter(qdisc).drops,
                )
        return found

    def close(self) -> None:
        self._socket.close()


def _counter(message: Any) -> Counter:
    statistics = message.get_attr("TCA_STATS2")
    basic, queue = statistics.get_attr("TCA_STATS_BASIC"), statistics.get_attr("TCA_STATS_QUEUE")
    return Counter(basic["bytes"], basic["packets"], queue["drops"])


def _borrows(entry: Any) -> bool:
    """Whether a class stands below the link's and only borrows from it, in the order of its kind."""
    parameters = _htb(entry)
    ours = (LINK, BORROWED_BYTES_PER_S, MAX_WIRE_BYTES_PER_S, _priority(entry["handle"]))
    return (entry["parent"], parameters["rate"], parameters["ceil"], parameters["prio"]) == ours


def _rate_and_burst(entry: Any) -> tuple[int, int]:
    """A class's bytes per second, and its burst in bytes."""
    parameters = _htb(entry)
    rate = min(parameters["rate"], parameters["ceil"])
    return rate, round(max(parameters["buffer"], parameters["cbuffer"]) * TICK_S * rate)


def _htb(entry: Any) -> Any:
    return entry.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")


def _fifo_limit(options: str) -> int:
    """A bfifo's limit; pyroute2 shows its options undecoded, as "00:00:02:00" (tc_fifo_qopt: one u32)."""
    return int.from_bytes(bytes.fromhex(options.replace(":", "")), "little")
