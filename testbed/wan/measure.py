"""A profile measured with iperf3 and ping between hosts that one can reach over ssh.

Theory of operation
1. A file lists one host per region: the address at which the others reach it, and the command that runs a program
   on it (`ssh` with options by default; in a test, `nsenter` into a namespace).
2. Pair after pair, never two at once: a server for one test (`iperf3 -s -1`) is started on the destination, and when
   it listens the client on the source. The client's log is read by the importer that reads anybody's logs.
3. The round trip comes from ping; where ping is missing or not answered (cloud firewalls often drop ICMP), from a
   trickle of 0.2 Mbit/s by iperf3, whose lowest smoothed RTT is that of an idle path.
4. ssh joins its arguments and hands them to a shell over there. So whatever comes out of the file and is passed on
   is checked to be free of characters that mean something to a shell; no command is ever built as text here.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated

import msgspec

from testbed.errors import InputError, RunError
from testbed.wan import iperf3, reading
from testbed.wan.import_profile import Rates
from testbed.wan.iperf3 import Failed, Test
from testbed.wan.profile import Pair

ADDRESS = re.compile(r"(?!-)[A-Za-z0-9.:%_-]{1,255}")
START_S = 20.0  # for a login and for a server to listen
GRACE_S = 20.0  # that a test may take beyond its duration
TRIES = 2
PINGS = 10
PING_MEAN = re.compile(r"= ?[\d.]+/([\d.]+)/")  # "rtt min/avg/max/mdev = 0.03/0.04/0.06/0.01 ms", BSD's likewise
TRICKLE = ("-t", "2", "-i", "0.5", "-b", "200K", "-l", "2896")  # two full segments a write: no delayed ACK


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[hosts]]`: a region's host; `command` runs a program on it (default: `ssh -o BatchMode=yes ADDRESS`)."""

    region: str
    address: str
    command: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None

    @property
    def prefix(self) -> list[str]:
        return self.command or ["ssh", "-o", "BatchMode=yes", self.address]


class Hosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A list of hosts and how they are measured: seconds of a test, seconds left out at its start, streams, port."""

    hosts: Annotated[list[Host], msgspec.Meta(min_length=2)]
    duration_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 10
    omit_s: Annotated[int, msgspec.Meta(ge=0, le=60)] = 1
    streams: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 5201

    @property
    def method(self) -> str:
        """How rates are measured, for the profile's sources."""
        streams = "one stream" if self.streams == 1 else f"{self.streams} streams"
        omitted = f" after {self.omit_s} s of start-up" if self.omit_s else ""
        return f"iperf3, TCP, {streams} for {self.duration_s} s{omitted}, one pair at a time, at the receiver"


def read_hosts(path: Path) -> Hosts:
    """Read a list of hosts.

    Raises
    ------
    InputError
        Something in it cannot be; names the file and the host.
    """
    found = reading.read_toml(path, Hosts)
    for host in found.hosts:
        reading.region(host.region, f"{path}: region")
        if not ADDRESS.fullmatch(host.address):
            raise InputError(f"{path}: {host.region}: address '{host.address[:80]}' is neither an address nor a name")
    for region, count in Counter(host.region for host in found.hosts).items():
        if count > 1:
            raise InputError(f"{path}: region {region} has two hosts; a profile needs one")
    return found


def measure(hosts: Hosts, tell: Callable[[str], None], logs: Path | None = None) -> tuple[Rates, str]:
    """Measure every directed pair's goodput and every pair's round trip.

    Parameters
    ----------
    tell : is called with one line per figure
    logs : keep iperf3's logs here, as `<src>__<dst>.json`

    Returns
    -------
    The rates and round trips, and how the round trips were measured.

    Raises
    ------
    RunError
        A host cannot be reached or a test fails twice.
    """
    with TemporaryDirectory() as temporary:
        folder = logs or Path(temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: {error.strerror}; name another folder with --logs") from None
        rates, methods = Rates(), set[str]()
        for src, dst in combinations(hosts.hosts, 2):
            rates.rtt_ms[src.region, dst.region], method = _round_trip(src, dst, hosts.port, Path(temporary))
            methods.add(method)
            tell(f"{src.region} - {dst.region}: {rates.rtt_ms[src.region, dst.region]:.3f} ms ({method})")
        options = ["-t", str(hosts.duration_s), "-O", str(hosts.omit_s), "-P", str(hosts.streams)]
        for src, dst in permutations(hosts.hosts, 2):
            pair = (src.region, dst.region)
            test = _test(src, dst, hosts.port, options, hosts.duration_s + hosts.omit_s, _log(folder, pair))
            rates.goodput_mbit[pair] = [test.goodput_mbit]
            tell(f"{src.region} > {dst.region}: {test.goodput_mbit:.1f} Mbit/s")
    return rates, " or ".join(sorted(methods))


def _log(folder: Path, pair: Pair) -> Path:
    return folder / f"{pair[0]}__{pair[1]}.json"


def _round_trip(src: Host, dst: Host, port: int, folder: Path) -> tuple[float, str]:
    """The pair's RTT in ms and how it was measured."""
    command = [*src.prefix, "ping", "-n", "-q", "-c", str(PINGS), "-i", "0.2", dst.address]
    code, out, _ = _run(command, START_S + GRACE_S)
    mean = PING_MEAN.search(out)
    if code == 0 and mean:
        return reading.rtt(float(mean[1]), f"ping {src.region} to {dst.region}"), f"ping, mean of {PINGS}"
    test = _test(src, dst, port, TRICKLE, 2, folder / "trickle.json")
    if test.rtt_ms is None:
        raise RunError(f"{src.region} to {dst.region}: neither ping nor iperf3 tells the RTT; import it with --rtt")
    return test.rtt_ms, "lowest smoothed RTT of iperf3 at 0.2 Mbit/s"


def _test(src: Host, dst: Host, port: int, options: Sequence[str], duration_s: int, log: Path) -> Test:
    """One iperf3 test from `src` to `dst`, tried twice."""
    error = ""
    for _ in range(TRIES):
        limit_s = round(duration_s + START_S + GRACE_S)
        try:
            with _server(dst, port, limit_s):
                client = ["iperf3", "-c", dst.address, "-p", str(port), "-J", "--connect-timeout", "5000", *options]
                _, out, complaint = _run([*src.prefix, "timeout", str(limit_s), *client], limit_s + START_S)
        except RunError:
            if error:  # the first try's server may still hold the port there: what failed then is what is wrong
                break
            raise
        log.write_text(out)
        if not out.strip():
            error = complaint
            continue
        [found] = iperf3.read(log)
        if isinstance(found, Test):
            return found
        error = found.error if isinstance(found, Failed) else ""
    raise RunError(f"{src.region} to {dst.region} ({dst.address}:{port}): iperf3: {error or 'no answer'}")


@contextmanager
def _server(host: Host, port: int, limit_s: int) -> Iterator[None]:
    """An iperf3 server on `host` that listens when the block begins; `timeout` ends one that ssh has lost."""
    command = [*host.prefix, "timeout", str(limit_s), "iperf3", "-s", "-1", "-p", str(port), "--forceflush"]
    with _started(command) as process:
        try:
            _wait_listening(process, host)
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror}; check `command` in the list of hosts") from None
    with process:
        yield process


def _wait_listening(process: subprocess.Popen[bytes], host: Host) -> None:
    assert process.stdout is not None
    said, deadline = b"", monotonic() + START_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"listening" not in said:
            if not selector.select(max(deadline - monotonic(), 0.0)):
                raise RunError(
                    f"{host.region}: no iperf3 server within {START_S:g} s; try {' '.join(host.prefix)} true"
                )
            came = os.read(process.stdout.fileno(), 4096)
            if not came:
                raise RunError(f"{host.region}: iperf3 did not start there: {_last(said.decode(errors='replace'))}")
            said += came


def _run(command: list[str], timeout_s: float) -> tuple[int, str, str]:
    """Exit status, output and the last line of complaint of a command."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror}; check `command` in the list of hosts") from None
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout_s:g} s"
    return done.returncode, done.stdout, _last(done.stderr)


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip() != "iperf3: exiting"]
    return lines[-1][:200] if lines else "it said nothing"
