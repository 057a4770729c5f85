"""How one direction of a link is shaped, set, read back, counted and changed.

An interface that sends into a link carries HTB (one class) with a byte-limited fifo below it. HTB counts Ethernet
frames, a profile states TCP goodput, so its rate is goodput * 1514 / 1448: a full packet is 1514 bytes on the wire
(14 Ethernet, 20 IP, 32 TCP with timestamps) and carries 1448.

HTB lets a packet go when its transmission would begin, and lets a whole burst go at once after a pause. On a WAN
link the delay stage behind it (`delay`) holds every packet until its transmission would have ended, at the same
rate; there the burst cannot falsify a message's time and is chosen large enough for HTB to lose no rate to late
timers. A LAN link has no such stage: its burst is a quarter of a millisecond.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyroute2 import IPRoute

from testbed.errors import NetworkError
from testbed.fabrics.emulation import netns
from testbed.wan.profile import Link

FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448
QUANTUM_BYTES = 60_000  # HTB derives it from the rate otherwise, and complains; with one class it has no effect
WAN_BURST_S, LAN_BURST_S = 4e-3, 0.25e-3
# Receive windows are 65535 << scale: recent kernels forget a finer bound set on a route, but never the scale.
WINDOW_UNIT_BYTES = 65_535
WINDOW_PRODUCTS, WINDOW_SLACK_S = 1.5, 4e-3  # products; what the end hosts may take to answer
SEGMENT_BYTES = 65_536
# A LAN link's fifo takes the windows of five workers (and some) that send to their LPS at once.
LAN_WINDOW_BYTES = WINDOW_UNIT_BYTES << 2
LAN_QUEUE_BYTES = 8 * LAN_WINDOW_BYTES
TICK_S = 64e-9  # the unit in which the kernel keeps burst sizes and netem delays

ROOT, CLASS, FIFO = 0x10000, 0x10001, 0x100000  # tc handles 1:, 1:1 and 10:


@dataclass(frozen=True)
class Shape:
    """What HTB and its fifo are set to on one interface."""

    wire_bytes_per_s: int
    burst_bytes: int
    queue_bytes: int

    @classmethod
    def of_wan(cls, link: Link) -> Shape:
        """For one direction between two regions."""
        rate = wire_bytes_per_s(link.goodput_mbit)
        queue = wan_window_bytes(link) * FRAME_BYTES // PAYLOAD_BYTES + SEGMENT_BYTES
        return cls(rate, _burst(rate, WAN_BURST_S), queue)

    @classmethod
    def of_lan(cls, link: Link) -> Shape:
        """For either direction between a host and its router."""
        rate = wire_bytes_per_s(link.goodput_mbit)
        return cls(rate, _burst(rate, LAN_BURST_S), LAN_QUEUE_BYTES)

    def at(self, goodput_mbit: float) -> Shape:
        """The same WAN link at another rate; the queue stays, as a router's buffer does."""
        rate = wire_bytes_per_s(goodput_mbit)
        return replace(self, wire_bytes_per_s=rate, burst_bytes=_burst(rate, WAN_BURST_S))


def wire_bytes_per_s(goodput_mbit: float) -> int:
    """Bytes per second on the wire, Ethernet headers included, that carry this TCP goodput (10^6 bit/s)."""
    return round(goodput_mbit * 1e6 / 8 * FRAME_BYTES / PAYLOAD_BYTES)


def wan_window_bytes(link: Link) -> int:
    """The largest receive window of a connection over a WAN link: one that keeps it full, with half in reserve.

    The link's fifo holds one such window, which after a pause arrives at once, so a connection alone on a link
    loses nothing.
    """
    needed = WINDOW_PRODUCTS * link.bytes_per_s * (link.rtt_ms / 1e3 + WINDOW_SLACK_S)
    scale = 0
    while WINDOW_UNIT_BYTES << scale < needed:
        scale += 1
    return WINDOW_UNIT_BYTES << scale


def _burst(rate: int, seconds: float) -> int:
    return max(FRAME_BYTES, round(rate * seconds))


def tc_commands(interface: str, shape: Shape) -> list[str]:
    """The lines of a `tc -batch` that shape `interface`."""
    burst = f"burst {shape.burst_bytes}b cburst {shape.burst_bytes}b quantum {QUANTUM_BYTES}"
    rate = f"rate {8 * shape.wire_bytes_per_s}bit"
    return [
        f"qdisc replace dev {interface} root handle 1: htb default 1",
        f"class add dev {interface} parent 1: classid 1:1 htb {rate} {burst}",
        f"qdisc add dev {interface} parent 1:1 handle 10: bfifo limit {shape.queue_bytes}",
    ]


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


@dataclass(frozen=True)
class Counter:
    """What has left on one directed link since it was built; bytes are those on the wire, as tc counts them."""

    wire_bytes: int
    packets: int
    drops: int


@dataclass(frozen=True)
class Found:
    """What the kernel says of an interface: its shape, and the packets that matched no class and passed unshaped."""

    shape: Shape
    direct_packets: int


@dataclass(frozen=True)
class Netem:
    """What the kernel says of one netem; a rate of 0 is none."""

    delay_s: float
    bytes_per_s: int
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

    def counters(self) -> dict[str, Counter]:
        """Per shaped interface what its HTB has sent (one netlink request for the whole namespace)."""
        found = {}
        for qdisc in self._socket.get_qdiscs():
            if qdisc["handle"] == ROOT and qdisc.get_attr("TCA_KIND") == "htb":
                found[self._name[qdisc["index"]]] = _counter(qdisc)
        return found

    def shapes(self) -> dict[str, Found]:
        """Per interface how it is shaped; one whose HTB, class or fifo is missing is left out."""
        fifos: dict[int, int] = {}
        direct: dict[int, int] = {}
        for qdisc in self._socket.get_qdiscs():
            kind, options = qdisc.get_attr("TCA_KIND"), qdisc.get_attr("TCA_OPTIONS")
            if qdisc["handle"] == ROOT and kind == "htb":
                direct[qdisc["index"]] = options.get_attr("TCA_HTB_INIT")["direct_pkts"]
            elif qdisc["handle"] == FIFO and kind == "bfifo":
                fifos[qdisc["index"]] = _fifo_limit(options)
        found = {}
        for index in direct.keys() & fifos.keys():
            for entry in self._socket.get_classes(index=index):
                if entry["handle"] == CLASS:
                    found[self._name[index]] = Found(_class_shape(entry, fifos[index]), direct[index])
        return found

    def change(self, interface: str, shape: Shape) -> None:
        """Set another rate on running traffic: the class is changed in place, nothing queued is lost."""
        self._socket.tc(
            "change-class",
            "htb",
            self._index[interface],
            handle=CLASS,
            parent=ROOT,
            rate=f"{8 * shape.wire_bytes_per_s}bit",
            burst=shape.burst_bytes,
            cburst=shape.burst_bytes,
            quantum=QUANTUM_BYTES,
        )

    def netems(self) -> dict[str, Netem]:
        """Per interface the netem at its root."""
        found = {}
        for qdisc in self._socket.get_qdiscs():
            if qdisc["handle"] == ROOT and qdisc.get_attr("TCA_KIND") == "netem":
                options = qdisc.get_attr("TCA_OPTIONS")
                rate = options.get_attr("TCA_NETEM_RATE")
                found[self._name[qdisc["index"]]] = Netem(
                    options["delay"] * TICK_S, rate["rate"] if rate else 0, _counter(qdisc).drops
                )
        return found

    def close(self) -> None:
        self._socket.close()


def _counter(message: Any) -> Counter:
    statistics = message.get_attr("TCA_STATS2")
    basic, queue = statistics.get_attr("TCA_STATS_BASIC"), statistics.get_attr("TCA_STATS_QUEUE")
    return Counter(basic["bytes"], basic["packets"], queue["drops"])


def _class_shape(entry: Any, queue_bytes: int) -> Shape:
    parameters = entry.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
    rate = min(parameters["rate"], parameters["ceil"])
    return Shape(rate, round(max(parameters["buffer"], parameters["cbuffer"]) * TICK_S * rate), queue_bytes)


def _fifo_limit(options: str) -> int:
    """A bfifo's limit; pyroute2 shows its options undecoded, as "00:00:02:00" (tc_fifo_qopt: one u32)."""
    return int.from_bytes(bytes.fromhex(options.replace(":", "")), "little")
