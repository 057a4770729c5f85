"""A command in the foreground of a host, with the user's terminal where there is one.

A sandbox stands in a session without a terminal (`emulation/sandbox.py`), so that a shell in it would have no job
control and Ctrl-C would end more than was meant. The command gets a terminal of its own, and what the user types and
what it writes are handed on between the two.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from testbed.emulation import hostname, netns
from testbed.emulation.network import Host
from testbed.errors import InputError
from testbed.wan.plan import label

CHUNK_BYTES = 1 << 14
WINDOW_BYTES = 8  # struct winsize


def run(host: Host, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command on a host and wait; its status, 128 + n where signal n ended it.

    Raises
    ------
    InputError
        There is no such command.
    """
    sys.stdout.flush()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _plainly(host, command, environment)
    if shutil.which(command[0]) is None:  # setsid would say so, in its own words
        raise InputError(f"no command '{command[0]}' on this machine")
    ours, theirs = pty.openpty()
    try:
        with suppress(OSError):
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(WINDOW_BYTES)))
        process = _popen(host, ["setsid", "--ctty", *command], environment, theirs, theirs)
        os.close(theirs)
        with _raw():
            _relay(ours)
        return _status(process.wait())
    finally:
        os.close(ours)


def _plainly(host: Host, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Without a terminal; standard input is not the command's, since the prompt's commands come from there."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
        process = _popen(host, command, environment, nothing.fileno(), None)
    try:
        return _status(process.wait())
    except BaseException:  # Ctrl-C, or a request to end
        process.kill()
        process.wait()
        raise


def _popen(
    host: Host, command: Sequence[str], environment: Mapping[str, str], stdin: int, out: int | None
) -> subprocess.Popen[bytes]:
    try:
        with netns.enter(host.netns_pid), hostname.called(label(host.name)):
            return subprocess.Popen(list(command), env=dict(environment), stdin=stdin, stdout=out, stderr=out)
    except FileNotFoundError:
        raise InputError(f"no command '{command[0]}' on this machine") from None
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror}") from None


@contextmanager
def _raw() -> Iterator[None]:
    """The user's terminal hands on every key, Ctrl-C as well, and is as before afterwards."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is not lost
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay(terminal: int) -> None:
    """Hand on what is typed and what is written until the command and its children have closed their end."""
    sources = [0, terminal]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if terminal in ready:
            try:
                data = os.read(terminal, CHUNK_BYTES)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            os.write(1, data)
        if 0 in ready:
            typed = os.read(0, CHUNK_BYTES)
            if typed:
                os.write(terminal, typed)
            else:
                sources.remove(0)


def _status(code: int) -> int:
    return code if code >= 0 else 128 - code
