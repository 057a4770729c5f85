"""The processes of a program, one a host: started, their output told apart, ended together.

Theory of operation
1. Each process is the leader of a session of its own, whose group a signal reaches; it stands in its host's network
   namespace, into which the thread that starts it has gone for that moment.
2. A thread a process reads what it writes, line by line, into the host's log file, and shows the lines with the host's
   name before them. A host that writes much holds up only itself.
3. When one fails the others are told to end (SIGTERM), and killed when they have not in `GRACE_S`; what detaches itself
   from its group dies with the sandbox.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import TextIO

from testbed.emulation import netns
from testbed.errors import InputError
from testbed.programs.hosts import label

GRACE_S = 5.0
COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
LINE_BYTES = 1 << 16  # a longer line is shown in pieces


@dataclass
class Started:
    """One host's process; `status` is None while it runs, 128 + n where signal n ended it."""

    host: str
    process: subprocess.Popen[bytes]
    log: Path
    status: int | None = None
    ended_s: float = 0.0
    output: Thread | None = field(default=None, repr=False)


class Crew:
    """Starts a command on each host and waits for all.

    Parameters
    ----------
    logs : folder of the log files, which exists
    show : takes a line of output as it is to be shown; standard output when None
    """

    def __init__(self, logs: Path, show: Callable[[str], None] | None = None) -> None:
        self.members: dict[str, Started] = {}
        self._logs = logs
        self._changed = Condition()
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._show = show or _to(sys.stdout)

    def start(self, host: str, netns_pid: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start `command` on a host.

        Raises
        ------
        InputError
            There is no such command.
        """
        log = self._logs / f"{label(host)}.log"
        try:
            with netns.enter(netns_pid):
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
        member = self.members[host] = Started(host, process, log)
        member.output = Thread(target=self._read, args=(member, len(self.members)), daemon=True)
        member.output.start()
        Thread(target=self._watch, args=(member,), daemon=True).start()

    def wait(self, keep_going: bool) -> int:
        """Wait until all have ended, and return the status of the first that failed; the others are ended with it.

        Parameters
        ----------
        keep_going : let the others go on where one fails
        """
        failed: Started | None = None
        with self._changed:
            while any(member.status is None for member in self.members.values()):
                if (failed := self._first_failure()) and not keep_going:
                    break
                self._changed.wait()
        if failed and not keep_going:
            self.end()
        for member in self.members.values():
            if member.output is not None:
                member.output.join(GRACE_S)  # a child of its own may hold the pipe open
        failed = failed or self._first_failure()
        return failed.status or 0 if failed else 0

    def signal(self, number: int) -> None:
        """Hand a signal to every process that runs, with those that it has started."""
        for member in self.members.values():
            if member.status is None:
                with suppress(ProcessLookupError):
                    os.killpg(member.process.pid, number)

    def end(self) -> None:
        """End all that still run: ask, wait, kill."""
        self.signal(signal.SIGTERM)
        until_s = monotonic() + GRACE_S
        with self._changed:
            while any(member.status is None for member in self.members.values()) and monotonic() < until_s:
                self._changed.wait(max(until_s - monotonic(), 0.0))
        self.signal(signal.SIGKILL)
        with self._changed:
            while any(member.status is None for member in self.members.values()):
                self._changed.wait()

    def _first_failure(self) -> Started | None:
        failures = [member for member in self.members.values() if member.status]
        return min(failures, key=lambda member: member.ended_s, default=None)

    def _watch(self, member: Started) -> None:
        code = member.process.wait()
        with self._changed:
            member.status, member.ended_s = code if code >= 0 else 128 - code, monotonic()
            self._changed.notify_all()

    def _read(self, member: Started, number: int) -> None:
        name = label(member.host)
        before = f"\033[{COLOURS[(number - 1) % len(COLOURS)]}m{name}\033[0m | " if self._coloured else f"{name} | "
        stream = member.process.stdout
        assert stream is not None
        with member.log.open("wb", buffering=0) as log:
            while line := stream.readline(LINE_BYTES):
                log.write(line)
                self._show(before + line.decode(errors="replace").rstrip("\r\n"))


def _to(stream: TextIO) -> Callable[[str], None]:
    """Writes whole lines to a stream, from any thread; a reader that has gone is no reason to stop."""

    def show(line: str) -> None:
        with suppress(BrokenPipeError):
            stream.write(line + "\n")
            stream.flush()

    return show
