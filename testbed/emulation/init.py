"""Process 1 of a sandbox: prepares the namespaces, runs one command, reaps orphans, passes signals on.

Run as a script by an isolated interpreter, `init.py CONTROL COMMAND...`; it imports nothing but the standard
library. CONTROL is the descriptor of a pipe from the supervisor outside: each byte is the number of a signal for
the command, its end means that the supervisor is gone. When this process ends, the kernel kills whatever still
runs in the sandbox and removes its namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys

SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
CANNOT_PREPARE, CANNOT_RUN = 125, 127  # exit statuses, as env(1) and timeout(1) use them
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the command given in the arguments; exit as it does, with 128 + n where signal n ended it."""
    control, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(control, False)
    try:
        _prepare()
    except OSError as error:
        print(f"sandbox: {error.filename or 'set-up'}: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT_PREPARE)
    # Read by sandbox.inside(). (Without pathlib, whose import would double this process's start-up time.)
    os.environ["TESTBED_SANDBOX"] = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    wakeup, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # process 1 gets a signal only where it has a handler
    child = _start(command)
    while True:
        ready, _, _ = select.select([control, wakeup], [], [])
        for source in ready:
            came = os.read(source, 64)
            if not came:
                sys.exit(128 + signal.SIGKILL)  # the supervisor is gone
            for value in came:
                if value in PASSED_ON:
                    os.kill(child, value)
        status = _reap(child)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)


def _prepare() -> None:
    """A private /run, for Mininet's and iproute2's files, and the loopback interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "/run")
    os.makedirs("/run/netns")  # noqa: PTH103
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _start(command: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"sandbox: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(CANNOT_RUN)


def _reap(child: int) -> int | None:
    """Collect every process that has ended; returns the command's status when it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError as error:
            if error.errno == errno.ECHILD:
                return found
            raise
        if pid == 0:
            return found
        if pid == child:
            found = status


if __name__ == "__main__":
    main()
