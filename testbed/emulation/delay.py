"""The delay stage: what holds a WAN link's packets for their transmission and propagation time.

All WAN links meet in one network namespace, the "wires": router A's interface for B ends there, and so does router
B's for A. A path is one direction between two such ends; the stage carries frames along it and makes each take
size / rate + delay. Two mechanisms do that: netem behind a redirection of everything that comes in, where the
kernel has it, and otherwise the delay line, a small process of our own (`delayline.c`). Only netem can also lose
packets and let the delay stray.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from testbed.emulation import links, netns, processes
from testbed.errors import InputError, NetworkError
from testbed.wan.profile import Link

SOURCE = Path(__file__).with_name("delayline.c")
ANSWER_TIMEOUT_S = 10.0
NETEM_LIMIT = 1_000_000  # packets; what is held is bounded by HTB before it, at rate * delay


@dataclass(frozen=True)
class Wire:
    """One direction of a WAN link on its way through the wires."""

    name: str  # "src>dst"
    entry: str  # interface on which its frames arrive
    exit: str  # interface on which they leave
    carries: Carries


@dataclass(frozen=True)
class Carries:
    """What a wire does to frames; `jitter_s` to either side of the delay, never reordering."""

    delay_s: float
    bytes_per_s: int  # on the wire
    loss_percent: float = 0.0  # of the packets, each for itself
    jitter_s: float = 0.0

    @classmethod
    def of(cls, link: Link) -> Carries:
        """For one direction between two regions."""
        rate = links.wire_bytes_per_s(link.goodput_mbit)
        return cls(link.delay_s, rate, link.loss_percent, link.jitter_ms / 1e3)


class DelayStage(Protocol):
    """What carries the frames; made by `start`."""

    mechanism: str

    def set_rate(self, name: str, bytes_per_s: int) -> None:
        """Change a wire's rate for the frames still to come."""

    def set_delay(self, name: str, delay_s: float) -> None:
        """Change a wire's one-way delay for the frames still to come; none overtakes another."""

    def found(self) -> dict[str, Carries]:
        """What each wire does, by name, as the mechanism itself states it."""

    def report(self) -> dict[str, Any]:
        """Frames lost, and how late frames left, for the run's record; see the classes."""

    def watch(self) -> None:
        """Raise NetworkError where nothing is carried any more; quick enough to be asked all the time."""

    def close(self) -> None:
        """Stop carrying; safe to call twice."""


def start(pid: int, wires: Sequence[Wire], mechanism: str) -> DelayStage:
    """Set `wires` going in the network namespace of process `pid`; mechanism is "netem" or "delay-line".

    Raises
    ------
    NetworkError
        The mechanism does not work on this machine.
    InputError
        A wire asks for loss or jitter, which the delay line does not have.
    """
    return Netem(pid, wires) if mechanism == "netem" else DelayLine(pid, wires)


class Netem:
    """netem at the end of each wire; the kernel's redirection brings it every frame that enters the wire."""

    mechanism = "netem"

    def __init__(self, pid: int, wires: Sequence[Wire]) -> None:
        self._pid = pid
        self._wires = {wire.name: wire for wire in wires}
        lines = []
        for wire in wires:
            lines += [
                f"qdisc replace {_netem(wire)}",
                f"qdisc add dev {wire.entry} handle ffff: ingress",
                f"filter add dev {wire.entry} parent ffff: protocol all prio 1 u32 match u32 0 0"
                f" action mirred egress redirect dev {wire.exit}",
            ]
        links.batch("tc", pid, lines)
        self._namespace = links.Namespace(pid)

    def set_rate(self, name: str, bytes_per_s: int) -> None:
        self._change(name, bytes_per_s=bytes_per_s)

    def set_delay(self, name: str, delay_s: float) -> None:
        self._change(name, delay_s=delay_s)

    def _change(self, name: str, **what: Any) -> None:
        wire = self._wires[name]
        self._wires[name] = wire = replace(wire, carries=replace(wire.carries, **what))
        # Not with pyroute2: it sends netem's rate twice, once as an attribute that the kernel refuses.
        links.batch("tc", self._pid, [f"qdisc change {_netem(wire)}"])

    def found(self) -> dict[str, Carries]:
        found = self._namespace.netems()
        return {
            name: Carries(there.delay_s, there.bytes_per_s, there.loss_percent, there.jitter_s)
            for name, wire in self._wires.items()
            if (there := found.get(wire.exit)) is not None
        }

    def report(self) -> dict[str, Any]:
        """`mechanism` and `drops` (frames of all wires, those that the profile has lost among them).

        The kernel does not tell how late netem's frames leave.
        """
        drops = sum(netem.drops for netem in self._namespace.netems().values())
        return {"mechanism": self.mechanism, "drops": drops}

    def watch(self) -> None:
        """The kernel carries as long as it runs."""

    def close(self) -> None:
        wires, self._wires = self._wires, {}
        if wires:
            self._namespace.close()
            lines = [f"qdisc del dev {wire.exit} root" for wire in wires.values()]
            lines += [f"qdisc del dev {wire.entry} ingress" for wire in wires.values()]
            with suppress(NetworkError):  # the namespace may be gone already, and the qdiscs with it
                links.batch("tc", self._pid, lines)


def _netem(wire: Wire) -> str:
    """The parameters of `tc qdisc`; with a rate netem keeps frames in order whatever the jitter."""
    carries = wire.carries
    jitter = f" {round(carries.jitter_s * 1e6)}us" if carries.jitter_s else ""
    loss = f" loss random {carries.loss_percent:.7f}%" if carries.loss_percent else ""
    rate = f"rate {8 * carries.bytes_per_s}bit limit {NETEM_LIMIT}"
    return f"dev {wire.exit} root handle 1: netem delay {round(carries.delay_s * 1e6)}us{jitter}{loss} {rate}"


class DelayLine:
    """The process of `delayline.c`, which serves all wires; it ends with this one."""

    mechanism = "delay-line"

    def __init__(self, pid: int, wires: Sequence[Wire]) -> None:
        _refuse_impairments(wires)
        self._order = {wire.name: number for number, wire in enumerate(wires)}
        program = build()
        with netns.enter(pid):
            self._process = subprocess.Popen(
                [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        for wire in wires:
            self._tell(f"path {wire.entry} {wire.exit} {_ns(wire.carries.delay_s)} {wire.carries.bytes_per_s}")
        self._tell("start")
        self.realtime = bool(self._answer()["realtime"])

    def set_rate(self, name: str, bytes_per_s: int) -> None:
        self._tell(f"rate {self._order[name]} {bytes_per_s}")

    def set_delay(self, name: str, delay_s: float) -> None:
        self._tell(f"delay {self._order[name]} {_ns(delay_s)}")

    def found(self) -> dict[str, Carries]:
        paths = self._ask()["paths"]
        return {
            name: Carries(paths[number]["delay_ns"] / 1e9, paths[number]["bytes_per_s"])
            for name, number in self._order.items()
        }

    def report(self) -> dict[str, Any]:
        """Whole-process figures.

        `mechanism`, `realtime` (runs SCHED_FIFO), `frames` and `drops` (all wires), and how late frames left:
        `lateness_p50_ms`, `lateness_p99_ms`, `lateness_max_ms`.
        """
        answer = self._ask()
        paths = answer.pop("paths")
        sums = {key: sum(path[key] for path in paths) for key in ("frames", "drops")}
        return {"mechanism": self.mechanism, **answer, **sums}

    def watch(self) -> None:
        if processes.ailment(self._process.pid):
            raise self._ailing()

    def close(self) -> None:
        process = self._process
        if processes.ailment(process.pid):
            process.kill()  # one that is stopped would not notice the end of its input
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):  # what a dead process left unread
                if stream:
                    stream.close()
        try:
            process.wait(ANSWER_TIMEOUT_S)  # the end of its input ends it
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ask(self) -> dict[str, Any]:
        self.watch()
        self._tell("report")
        return self._answer()

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._ailing() from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise self._ailing()
        return json.loads(line)

    def _ailing(self) -> NetworkError:
        code = self._process.poll()
        if code is None and processes.ailment(self._process.pid):
            return NetworkError("the delay line's process is stopped; nothing crosses the WAN")
        if code is None:
            return NetworkError(
                f"the delay line has not answered within {ANSWER_TIMEOUT_S:g} s; nothing crosses the WAN"
            )
        said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
        return NetworkError(said or f"the delay line is dead (exit status {code}); nothing crosses the WAN links")


def _refuse_impairments(wires: Sequence[Wire]) -> None:
    impaired = [wire.name for wire in wires if wire.carries.loss_percent or wire.carries.jitter_s]
    if impaired:
        more = f" and {len(impaired) - 1} more" if impaired[1:] else ""
        raise InputError(
            f"the profile asks for loss or jitter on {impaired[0]}{more}, which needs netem, and the delay line stands"
            " in for it here; load the kernel's sch_netem, or set loss_percent and jitter_ms to 0"
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def build() -> Path:
    """The compiled delay line, from the cache, else compiled with `cc`.

    Raises
    ------
    NetworkError
        There is no compiler, or it refused the source.
    """
    source = SOURCE.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wan-testbed"
    program = cache / f"delayline-{hashlib.sha256(source).hexdigest()[:16]}"
    if os.access(program, os.X_OK):
        return program
    compiler = shutil.which("cc")
    if not compiler:
        raise NetworkError("the delay line needs a C compiler once; install gcc, or a kernel with netem")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Compiled under a temporary name and renamed: two runs that start at once must not see half a program.
        with tempfile.TemporaryDirectory(dir=cache, prefix="delayline-") as folder:
            _compile(compiler, Path(folder) / "delayline").rename(program)
    except OSError as error:
        raise NetworkError(f"{cache}: {error.strerror}; point XDG_CACHE_HOME at a folder you may write") from None
    return program


def _compile(compiler: str, program: Path) -> Path:
    command = [compiler, "-O2", "-Wall", "-o", str(program), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"cc cannot compile the delay line: {' '.join(done.stderr.split())[:500]}")
    return program
