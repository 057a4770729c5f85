"""What an iperf3 log (`iperf3 -J`) says: who sent to whom, how fast, and how the rate went over time.

Read are logs of clients and servers, TCP over IPv4 and IPv6, one stream or several, forward, reverse (-R) and
both ways at once (--bidir), and files with several logs one behind the other. The goodput is what the receiver
counted, summed over the streams.
"""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.wan import reading

AGREE = 0.05  # bytes and seconds must give the stated rate within this share


@dataclass(frozen=True)
class Interval:
    """One line of the log's course: TCP payload from `start_s` to `end_s`, over all streams."""

    start_s: float
    end_s: float
    goodput_mbit: float


@dataclass(frozen=True)
class Test:
    """One direction of one test that succeeded.

    `src` and `dst` are the addresses the data went from and to; `rtt_ms` is the lowest smoothed RTT that the sender
    saw under its own load, None where the log has none.
    """

    where: str  # "file:line" where the log begins
    src: str
    dst: str
    forward: bool  # from the client to the server
    goodput_mbit: float
    rtt_ms: float | None
    intervals: tuple[Interval, ...]

    __test__ = False  # the name begins with "Test"; pytest would otherwise try to collect it


@dataclass(frozen=True)
class Failed:
    """A test that did not succeed, and iperf3's own words why."""

    where: str
    error: str


class _Sum(msgspec.Struct, frozen=True):
    bits_per_second: float = 0.0
    bytes: float = 0.0
    start: float = 0.0
    end: float = 0.0
    seconds: float = 0.0
    omitted: bool = False


class _Sender(msgspec.Struct, frozen=True):
    min_rtt: float = 0.0  # microseconds
    sender: bool = True


class _Stream(msgspec.Struct, frozen=True):
    sender: _Sender = _Sender()


class _End(msgspec.Struct, frozen=True):
    sum_received: _Sum = _Sum()
    sum_received_bidir_reverse: _Sum | None = None
    streams: list[_Stream] = []


class _Interval(msgspec.Struct, frozen=True):
    sum: _Sum
    sum_bidir_reverse: _Sum | None = None


class _Connection(msgspec.Struct, frozen=True):
    local_host: str
    remote_host: str


class _TestStart(msgspec.Struct, frozen=True):
    protocol: str = "TCP"
    reverse: int = 0


class _Start(msgspec.Struct, frozen=True):
    connected: list[_Connection] = []
    accepted_connection: dict[str, Any] | None = None  # in the logs of servers
    test_start: _TestStart = _TestStart()


class _Log(msgspec.Struct, frozen=True):
    start: _Start = _Start()
    intervals: list[_Interval] = []
    end: _End = _End()
    error: str | None = None


def read(path: Path) -> list[Test | Failed]:
    """All tests of a file, in its order; a test both ways counts as two.

    Raises
    ------
    InputError
        The file is not a whole iperf3 log, or a figure in it cannot be; names file and line.
    """
    found: list[Test | Failed] = []
    for where, document in _documents(path):
        if not isinstance(document, dict) or "start" not in document or "end" not in document:
            raise InputError(f"{where}: not an iperf3 log; write one with `iperf3 -J`")
        try:
            log = msgspec.convert(document, _Log)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: not an iperf3 log: {error}") from None
        if log.error is not None:
            found.append(Failed(where, log.error))
        else:
            found.extend(_tests(log, where))
    return found


def _documents(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON documents of a file, each with the line it begins on."""
    text = reading.read_text(path)
    decoder = json.JSONDecoder(parse_constant=_no_number)
    at = _skip_blanks(text, 0)
    if at == len(text):
        raise InputError(f"{path}:1: empty; iperf3 wrote nothing into it")
    line, counted = 1, 0
    while at < len(text):
        line, counted = line + text.count("\n", counted, at), at
        where = f"{path}:{line}"
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            cut = " (the file is cut off)" if error.pos >= len(text.rstrip()) else ""
            raise InputError(f"{path}:{error.lineno}: not complete JSON: {error.msg}{cut}") from None
        except RecursionError:
            raise InputError(f"{where}: not an iperf3 log: nested too deeply") from None
        except ValueError as error:
            raise InputError(f"{where}: not an iperf3 log: {error}") from None
        yield where, document
        at = _skip_blanks(text, at)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _tests(log: _Log, where: str) -> Iterator[Test]:
    if log.start.test_start.protocol.upper() != "TCP":
        raise InputError(f"{where}: a {log.start.test_start.protocol} test; a profile needs TCP's goodput")
    if not log.start.connected:
        raise InputError(f"{where}: start.connected is empty; the log does not say who took part")
    ends = log.start.connected[0]
    client, server = plain_host(ends.local_host), plain_host(ends.remote_host)
    of_server = log.start.accepted_connection is not None
    if of_server:
        client, server = server, client
    forward = not log.start.test_start.reverse
    if of_server and not forward:
        raise InputError(
            f"{where}: the log of a server that sent (-R), which cannot say what arrived; take the client's"
        )
    src, dst = (client, server) if forward else (server, client)
    course = _course([interval.sum for interval in log.intervals], where)
    rate = _goodput(log.end.sum_received, f"{where}: end.sum_received")
    yield Test(where, src, dst, forward, rate, _rtt(log), course)
    back = log.end.sum_received_bidir_reverse
    if back is not None and not of_server:  # what a server sent, its log again cannot say
        sums = [interval.sum_bidir_reverse for interval in log.intervals if interval.sum_bidir_reverse is not None]
        rate = _goodput(back, f"{where}: end.sum_received_bidir_reverse")
        yield Test(where, dst, src, False, rate, None, _course(sums, where))


def _goodput(total: _Sum, where: str) -> float:
    """The rate of a sum in Mbit/s, checked against its bytes and seconds."""
    mbit = total.bits_per_second / 1e6
    if mbit > 0 and (total.seconds <= 0 or abs(total.bytes * 8e-6 / total.seconds - mbit) > AGREE * mbit):
        raise InputError(
            f"{where}: {total.bytes:g} bytes in {total.seconds:g} s are not {total.bits_per_second:g} bit/s; "
            "the log was changed or its unit is another"
        )
    return reading.rate(mbit, f"{where}: rate")


def _course(sums: list[_Sum], where: str) -> tuple[Interval, ...]:
    """The intervals that iperf3 did not omit; their time must not go back."""
    course: list[Interval] = []
    for each in sums:
        if each.omitted:
            continue
        if not (0 <= each.start < each.end < math.inf) or (course and each.start < course[-1].start_s):
            raise InputError(f"{where}: intervals: time goes back at {each.start:g} s to {each.end:g} s")
        if each.bits_per_second < 0:
            raise InputError(f"{where}: intervals: {each.bits_per_second:g} bit/s at {each.start:g} s")
        course.append(Interval(each.start, each.end, each.bits_per_second / 1e6))
    return tuple(course)


def _rtt(log: _Log) -> float | None:
    seen = [s.sender.min_rtt / 1e3 for s in log.end.streams if s.sender.sender and s.sender.min_rtt > 0]
    return min(seen, default=None)


def plain_host(name: str) -> str:
    """An address in its shortest form (::ffff:10.0.0.1 is 10.0.0.1); any other name as it is."""
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
