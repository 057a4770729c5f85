"""The processes of a program, one or more a host: started, their output told apart, ended together.

Theory of operation
1. Each process is the leader of a session of its own, whose group a signal reaches; it stands in its host's network
   namespace, into which the thread that starts it has gone for that moment.
2. A thread a process reads what it writes, line by line, into the host's log file, and shows the lines with the host's
   name before them. A host that writes much holds up only itself.
3. When one fails the others are told to end (SIGTERM), and killed when they have not in `GRACE_S`; what detaches itself
   from its group dies with the sandbox.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import IO, TextIO

from testbed.emulation import hostname, netns
from testbed.errors import InputError, RunError
from testbed.programs.starts import Ready
from testbed.wan.plan import label

GRACE_S = 5.0
WAKE_S = 0.2
LOOK_S = 0.05  # between two looks whether somebody listens on a port
COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
LINE_BYTES = 1 << 16  # a longer line is shown in pieces
LISTENING, LOOPBACK_END = "0A", "7F"  # as /proc/net/tcp writes them


@dataclass
class Member:
    """One process; `status` is None while it runs, 128 + n where signal n ended it.

    `name` is its host's, with ".2" behind it for the host's second process, and so on. `looked_for` is a text that its
    output should have, `seen` whether a line had it.
    """

    host: str
    name: str
    process: subprocess.Popen[bytes]
    netns_pid: int
    service: bool = False
    looked_for: str = ""
    seen: bool = False
    status: int | None = None
    ended_s: float = 0.0
    told: bool = False  # to end
    output: Thread | None = field(default=None, repr=False)

    @property
    def failed(self) -> bool:
        """Whether it ended as it should not have; what was told to end may do so as it likes."""
        return bool(self.status) and not self.told


class Crew:
    """Starts commands on hosts and waits for them.

    Parameters
    ----------
    logs : folder of the log files, which exists
    show : takes a line of output as it is to be shown; standard output when None
    broken : what the network has died of, if it has; everything is ended then
    """

    def __init__(
        self,
        logs: Path,
        show: Callable[[str], None] | None = None,
        broken: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self.members: list[Member] = []
        self._logs = logs
        self._changed = Condition()
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._show = show or _to(sys.stdout)
        self._unkept: RunError | None = None
        self._broken = lambda: self._unkept or broken()

    def start(
        self,
        host: str,
        netns_pid: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        ready: Ready | None = None,
        service: bool = False,
    ) -> Member:
        """Start `command` on a host; `ready` is what `ready` will wait for, a `service` ends with the others.

        Raises
        ------
        InputError
            There is no such command.
        """
        nth = 1 + sum(member.host == host for member in self.members)
        try:
            with netns.enter(netns_pid), hostname.called(label(host)):
                process = subprocess.Popen(
                    list(command),
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise InputError(f"{command[0]}: {error.strerror}; it is what should run on {label(host)}") from None
        name, line = host if nth == 1 else f"{host}.{nth}", ready.line if ready else ""
        member = Member(host, name, process, netns_pid, service, line)
        self.members.append(member)
        member.output = Thread(target=self._read, args=(member, len(self.members)), daemon=True)
        member.output.start()
        Thread(target=self._watch, args=(member,), daemon=True).start()
        return member

    def ready(self, members: Iterable[Member], ready: Ready) -> bool:
        """Wait until `members` are; False where one of all has failed before.

        Raises
        ------
        RunError
            They are not within the time they have, or one has ended without having been.
        """
        until_s = monotonic() + ready.within_s
        waiting = list(members)
        while waiting := [member for member in waiting if not _is_ready(member, ready)]:
            if self._first_failure() or self._broken():
                return False
            name = label(waiting[0].name)
            if waiting[0].status is not None:
                raise RunError(f"{name}: its program ended without having been ready ({ready}); see logs/{name}.log")
            if monotonic() > until_s:
                hint = f"its `ready` and `within_s` say so, logs/{name}.log what it did"
                raise RunError(f"{name}: no {ready} within {ready.within_s:g} s; {hint}")
            time.sleep(LOOK_S)
        return True

    def wait(self, keep_going: bool) -> int:
        """Wait until all have ended but services, which are ended then, and return the status of the first that failed.

        The others are ended with it.

        Parameters
        ----------
        keep_going : let the others go on where one fails

        Raises
        ------
        RunError
            A log cannot be written.
        NetworkError
            The network has died.
        """
        fine = lambda: not self._broken() and (keep_going or not self._first_failure())  # noqa: E731
        self._wait_while(lambda: bool(self._running(services=False)) and fine())
        self.end()
        if (broken := self._broken()) is not None:
            raise broken
        for member in self.members:
            if member.output is not None:
                member.output.join(GRACE_S)  # a child of its own may hold the pipe open
        failed = self._first_failure()
        return failed.status or 0 if failed else 0

    def signal(self, number: int) -> None:
        """Hand a signal to every process that runs, with those that it has started."""
        for member in self._running():
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, number)

    def end(self) -> None:
        """End all that still run: ask, wait, kill."""
        for member in self._running():
            member.told = True
        self.signal(signal.SIGTERM)
        self._wait_while(lambda: bool(self._running()), GRACE_S)
        self.signal(signal.SIGKILL)
        self._wait_while(lambda: bool(self._running()))

    def _wait_while(self, still: Callable[[], bool], most_s: float = math.inf) -> None:
        """Wait until `still` is not, or `most_s` are over.

        Never for long at once: a signal that comes just before a thread begins to wait does not wake it.
        """
        until_s = monotonic() + most_s
        with self._changed:
            while still() and monotonic() < until_s:
                self._changed.wait(min(WAKE_S, max(until_s - monotonic(), 0.0)))

    def _running(self, services: bool = True) -> list[Member]:
        return [member for member in self.members if member.status is None and (services or not member.service)]

    def _first_failure(self) -> Member | None:
        return min((member for member in self.members if member.failed), key=lambda each: each.ended_s, default=None)

    def _watch(self, member: Member) -> None:
        code = member.process.wait()
        with self._changed:
            member.status, member.ended_s = code if code >= 0 else 128 - code, monotonic()
            self._changed.notify_all()

    def _read(self, member: Member, number: int) -> None:
        """Keep and show what a process writes; where that cannot be kept, take it all the same, or it would wait."""
        stream = member.process.stdout
        assert stream is not None
        try:
            self._keep(member, number, stream)
        except OSError as error:
            with self._changed:
                self._unkept = RunError(f"{self._log(member)}: {error.strerror}; make room and run it again")
                self._changed.notify_all()
            while stream.readline(LINE_BYTES):
                pass

    def _log(self, member: Member) -> Path:
        return self._logs / f"{label(member.name)}.log"

    def _keep(self, member: Member, number: int, stream: IO[bytes]) -> None:
        name = label(member.name)
        before = f"\033[{COLOURS[(number - 1) % len(COLOURS)]}m{name}\033[0m | " if self._coloured else f"{name} | "
        with self._log(member).open("wb", buffering=0) as log:
            while line := stream.readline(LINE_BYTES):
                log.write(line)
                text = line.decode(errors="replace").rstrip("\r\n")
                if member.looked_for and member.looked_for in text:
                    member.seen = True
                self._show(before + text)


def _is_ready(member: Member, ready: Ready) -> bool:
    return listens(member.netns_pid, ready.port) if ready.port else member.seen


def listens(netns_pid: int, port: int) -> bool:
    """Whether somebody in the network namespace of a process listens on a TCP port that other hosts reach.

    Read from the kernel's table: a connection to try it would be the first, and for some servers the only one.
    """
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{netns_pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                address, _, number = local.partition(":")
                if state == LISTENING and int(number, 16) == port and not address.endswith(LOOPBACK_END):
                    return True
    return False


def _to(stream: TextIO) -> Callable[[str], None]:
    """Writes whole lines to a stream, from any thread; a reader that has gone, or a full disk, is no reason to stop."""

    def show(line: str) -> None:
        with suppress(OSError):
            stream.write(line + "\n")
            stream.flush()

    return show
