"""Measuring inside an emulated network, from the process that built it.

All hosts live on one machine and share its clock, so times are taken one way: a `Channel` is a warm TCP connection
between two hosts with both ends in this process, and its receiving thread notes when each byte count was reached.
Round trips are ICMP echoes with the kernel's own time of arrival: they tell what the network does, not how late a
busy machine wakes the probe.
"""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading
from bisect import bisect_left
from dataclasses import dataclass, replace
from time import clock_gettime, monotonic, sleep
from types import TracebackType
from typing import Self

from testbed.emulation import netns
from testbed.emulation.network import EmulatedNetwork
from testbed.errors import NetworkError
from testbed.wan.plan import region_of
from testbed.wan.profile import Link

CHUNK = memoryview(bytes(1 << 20))
READ_BYTES = 1 << 20
PATIENCE_S = 5.0  # beyond what a transfer should take, before it is given up
WARM_PRODUCTS, WARM_SLACK_S = 2.0, 10e-3  # bandwidth-delay products sent before anything is timed; the hosts' own time
SO_TIMESTAMPNS = 35
ECHO_REQUEST, ECHO_REPLY = 8, 0


def path_link(network: EmulatedNetwork, src: str, dst: str) -> Link:
    """The link between two hosts as the (dilated) profile has it; the LAN's delay is not emulated."""
    profile, (here, there) = network.plan.profile, (region_of(src), region_of(dst))
    if here == there:
        return Link(profile.lan.goodput_mbit, 0.0)
    return replace(profile.link(here, there), goodput_mbit=profile.path_mbit(here, there))


def round_trip_ms(network: EmulatedNetwork, src: str, dst: str) -> float:
    """There and back as the profile has it: both directions of a pair may have been measured, and differ."""
    return (path_link(network, src, dst).rtt_ms + path_link(network, dst, src).rtt_ms) / 2


def message_s(link: Link, size_bytes: int) -> float:
    """How long a message takes alone on a warm connection: size / rate + delay (seconds)."""
    return size_bytes / link.bytes_per_s + link.delay_s


class Arrivals:
    """When how many bytes had come, as one receiver saw it; another thread may wait for them."""

    def __init__(self) -> None:
        self.times_s: list[float] = []  # monotonic clock
        self.totals: list[int] = []  # bytes since the connection began
        self._awaited = 0
        self._came = threading.Condition()

    @property
    def total(self) -> int:
        """Bytes that have come so far."""
        return self.totals[-1] if self.totals else 0

    def note(self, time_s: float, total: int) -> None:
        with self._came:
            self.times_s.append(time_s)  # first, so that a reader never finds a total without its time
            self.totals.append(total)
            if total >= self._awaited:  # no sooner: waking at every note would cost the receiver its speed
                self._came.notify_all()

    def wait(self, total: int, patience_s: float) -> bool:
        """Wait until byte number `total` has come; False if it does not within `patience_s`."""
        with self._came:
            self._awaited = total
            return self._came.wait_for(lambda: self.total >= total, patience_s)

    def reached_s(self, total: int) -> float:
        """When byte number `total` had come."""
        return self.times_s[bisect_left(self.totals, total)]

    def by(self, time_s: float) -> float:
        """Bytes that had come by a time; between two notes they are taken to come evenly."""
        times, totals = self.times_s, self.totals
        after = bisect_left(times, time_s)
        if after == 0:
            return 0.0
        if after == len(times):
            return float(totals[-1])
        share = (time_s - times[after - 1]) / (times[after] - times[after - 1])
        return totals[after - 1] + share * (totals[after] - totals[after - 1])

    def mbit(self, start_s: float, end_s: float) -> float:
        """Mean goodput between two times (10^6 bit/s)."""
        return (self.by(end_s) - self.by(start_s)) * 8 / (end_s - start_s) / 1e6


class Channel:
    """A TCP connection from host `src` to host `dst`; a context manager. One thread may send at a time.

    Raises
    ------
    NetworkError
        No connection could be made, or what was sent did not arrive in good time.
    """

    def __init__(self, network: EmulatedNetwork, src: str, dst: str) -> None:
        self.name = f"{src} to {dst}"
        self.link, self.rtt_ms = path_link(network, src, dst), round_trip_ms(network, src, dst)
        self.arrivals = Arrivals()
        self.sent_bytes = 0
        here, there = network.hosts[src], network.hosts[dst]
        with netns.enter(there.netns_pid):
            listener = socket.create_server((there.ip, 0))
        with netns.enter(here.netns_pid):
            self._sender = socket.socket()
        with listener:
            self._receiver = self._connect(listener)
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(target=self._receive, name=f"probe {self.name}", daemon=True)
        self._thread.start()

    def _connect(self, listener: socket.socket) -> socket.socket:
        patience_s = PATIENCE_S + 2 * self.rtt_ms / 1e3
        self._sender.settimeout(patience_s)
        listener.settimeout(patience_s)
        try:
            self._sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
        except OSError as error:
            self._sender.close()
            raise NetworkError(f"no connection from {self.name}: {error}") from None
        return receiver

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for end in (self._sender, self._receiver):
            end.close()

    def _receive(self) -> None:
        buffer, total = bytearray(READ_BYTES), 0
        self._receiver.settimeout(None)
        while True:
            try:
                count = self._receiver.recv_into(buffer)
            except OSError:
                return
            if not count:
                return
            total += count
            self.arrivals.note(monotonic(), total)

    def put(self, size_bytes: int) -> tuple[float, int]:
        """Send bytes; returns when sending began (s) and the byte count at their end. It waits only for room."""
        began_s = monotonic()
        self._sender.settimeout(PATIENCE_S + 3 * message_s(self.link, size_bytes))
        left = size_bytes
        try:
            while left:
                part = min(left, len(CHUNK))
                self._sender.sendall(CHUNK[:part])
                left -= part
        except OSError as error:
            raise NetworkError(f"{self.name}: {error}") from None
        self.sent_bytes += size_bytes
        return began_s, self.sent_bytes

    def await_all(self) -> float:
        """Wait until everything sent has come; returns when it had (s)."""
        total = self.sent_bytes
        under_way = total - self.arrivals.total
        patience_s = PATIENCE_S + 3 * message_s(self.link, under_way)
        if not self.arrivals.wait(total, patience_s):
            raise NetworkError(f"{self.name}: the last {under_way} bytes did not come within {patience_s:.1f} s")
        return self.arrivals.reached_s(total)

    def warm(self) -> None:
        """Send until TCP's slow start is over: its window has then grown by what was acknowledged."""
        self.put(round(WARM_PRODUCTS * self.link.bytes_per_s * (self.rtt_ms / 1e3 + WARM_SLACK_S)))
        self.await_all()

    def message(self, size_bytes: int) -> float:
        """Seconds from the start of sending a message until its last byte has come."""
        began_s, _ = self.put(size_bytes)
        return self.await_all() - began_s

    def goodput_mbit(self, seconds: float) -> float:
        """Goodput of one message that should take this long at the link's rate (10^6 bit/s), without the delay."""
        size_bytes = max(1, round(self.link.bytes_per_s * seconds))
        return size_bytes * 8 / 1e6 / max(self.message(size_bytes) - self.link.delay_s, 1e-9)


@dataclass(frozen=True)
class Echoes:
    """Round trips in ms, in the order sent, and how many were lost."""

    rtts_ms: tuple[float, ...]
    lost: int

    def quantile(self, q: float) -> float | None:
        """The smallest round trip that at least `q` of all stayed within; a lost one is longer than any."""
        rank = max(0, -(-round(q * 1e6) * (len(self.rtts_ms) + self.lost) // 1_000_000) - 1)
        return sorted(self.rtts_ms)[rank] if rank < len(self.rtts_ms) else None


class Pinger:
    """ICMP echoes from one host to another, `count` of them `interval_s` apart, in a thread of its own."""

    def __init__(self, network: EmulatedNetwork, src: str, dst: str, count: int, interval_s: float) -> None:
        self._address, self._count, self._interval_s = network.hosts[dst].ip, count, interval_s
        self._patience_s = 1.0 + 3 * round_trip_ms(network, src, dst) / 1e3
        self._identifier = random.getrandbits(16)
        with netns.enter(network.hosts[src].netns_pid):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._sent_s: dict[int, float] = {}
        self._rtts_ms: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name=f"ping {self._address}", daemon=True)
        self._thread.start()

    def result(self) -> Echoes:
        """Wait for the end."""
        self._thread.join()
        return Echoes(
            tuple(self._rtts_ms[number] for number in sorted(self._rtts_ms)), self._count - len(self._rtts_ms)
        )

    def _run(self) -> None:
        with self._socket:
            begin_s = monotonic()
            for number in range(self._count):
                self._listen(begin_s + number * self._interval_s)
                packet = echo_request(self._identifier, number)
                self._sent_s[number] = clock_gettime(0)  # the wall clock, which the kernel's stamps are in
                try:
                    self._socket.sendto(packet, (self._address, 0))
                except OSError:
                    continue  # no route, no memory: it is lost
            self._listen(monotonic() + self._patience_s)

    def _listen(self, until_s: float) -> None:
        """Take replies until a time, or until all have come."""
        while len(self._rtts_ms) < self._count:
            ready, _, _ = select.select([self._socket], [], [], max(until_s - monotonic(), 0.0))
            if not ready:
                return
            packet, ancillary, _, _ = self._socket.recvmsg(2048, 128)
            number = echo_number(packet, self._identifier)
            if number in self._sent_s and number not in self._rtts_ms:
                self._rtts_ms[number] = 1e3 * (_stamp_s(ancillary) - self._sent_s[number])


def echo_request(identifier: int, number: int) -> bytes:
    """An ICMP echo request (RFC 792) with 56 bytes of data, as ping's."""
    data = bytes(56)
    head = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, identifier, number)
    return struct.pack("!BBHHH", ECHO_REQUEST, 0, checksum(head + data), identifier, number) + data


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo_number(packet: bytes, identifier: int) -> int | None:
    """The sequence number of an IPv4 packet that is the reply to one of ours, else None."""
    start = 4 * (packet[0] & 15)
    if len(packet) < start + 8:
        return None
    kind, _, _, found, number = struct.unpack_from("!BBHHH", packet, start)
    return number if kind == ECHO_REPLY and found == identifier else None


def _stamp_s(ancillary: list[tuple[int, int, bytes]]) -> float:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("@qq", data[:16])
            return seconds + nanoseconds / 1e9
    return clock_gettime(0)


def pause_until(time_s: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    sleep(max(time_s - monotonic(), 0.0))


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))
