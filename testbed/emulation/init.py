"""Process 1 of a sandbox: prepares the namespaces, runs one command, reaps orphans, passes signals on.

Run as a script by an isolated interpreter, `init.py CONTROL WITNESS ERRORS COMMAND...`; it imports nothing but the
standard library. Its first three arguments are descriptors. CONTROL is a pipe from the supervisor outside: each byte is
the number of a signal for the command, its end means that the supervisor is gone. WITNESS is a pipe to the supervisor:
an empty line when this process begins, and one of JSON when it ends, with the name and the signal of the last processes
that a signal has ended, the command's own name being "". ERRORS is where standard error goes. When this process ends,
the kernel kills whatever still runs in the sandbox and removes its namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from collections import deque

SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
STDERR = 2
BIND = 0x1000 | 0x4000  # MS_BIND and MS_REC
# Of the machine's /run: what the sandbox has of its own, and daemons that would act, and resolve names, outside of it.
NOT_SHOWN = {"netns", "testbed", "dbus", "nscd", "openvswitch", "systemd"}
TOLD = 100  # deaths: nobody reads the pipe before this process ends, and it holds 64 KB
CANNOT_PREPARE, CANNOT_RUN = 125, 127  # exit statuses, as env(1) and timeout(1) use them
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the command given in the arguments; exit as it does, with 128 + n where signal n ended it."""
    if len(sys.argv) < 5 or os.getpid() != 1:
        sys.exit("this is process 1 of a sandbox: python -m testbed.emulation.sandbox COMMAND...")
    control, witness, errors = map(int, sys.argv[1:4])
    command = sys.argv[4:]
    os.dup2(errors, STDERR)
    if errors > STDERR:
        os.close(errors)
    for descriptor in (control, witness):
        os.set_inheritable(descriptor, False)
    os.write(witness, b"\n")
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
    killed: deque[tuple[str, int]] = deque(maxlen=TOLD)
    while True:
        ready, _, _ = select.select([control, wakeup], [], [])
        for source in ready:
            came = os.read(source, 64)
            if not came:
                sys.exit(128 + signal.SIGKILL)  # the supervisor is gone
            for value in came:
                if value in PASSED_ON:
                    os.kill(child, value)
        status = _reap(child, killed)
        if status is not None:
            own = [("", _killed_by(status))] if _killed_by(status) else []
            os.write(witness, json.dumps([*killed, *own]).encode() + b"\n")
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)


def _prepare() -> None:
    """A private /run, for Mininet's and iproute2's files, with what users keep there; and the loopback interface."""
    machines = os.open("/run", os.O_PATH)
    names = os.listdir("/run")  # noqa: PTH208
    _mount("tmpfs", "/run", "tmpfs")
    os.makedirs("/run/netns")  # noqa: PTH103
    for name in names:
        if name not in NOT_SHOWN:
            with contextlib.suppress(OSError):  # what cannot be shown is nothing that a user has there
                _show(f"/proc/self/fd/{machines}/{name}", f"/run/{name}")
    os.close(machines)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _show(entry: str, place: str) -> None:
    """Let an entry of the machine's /run, with all that is mounted below it, be seen in this one."""
    if os.path.islink(entry):  # noqa: PTH114
        os.symlink(os.readlink(entry), place)  # noqa: PTH115, PTH211
        return
    if os.path.isdir(entry):  # noqa: PTH112
        os.mkdir(place)  # noqa: PTH102
    else:
        os.close(os.open(place, os.O_CREAT))
    _mount(entry, place, flags=BIND)


def _mount(source: str, place: str, kind: str = "", flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), place.encode(), kind.encode(), flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)


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


def _reap(child: int, killed: deque[tuple[str, int]]) -> int | None:
    """Collect every process that has ended; returns the command's status when it is among them.

    Those that had ended before their parent did come here with it, so that what brought the command to its end is seen.
    """
    found = None
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return found
        if ended is None:
            return found
        name = _name(ended.si_pid)
        pid, status = os.waitpid(ended.si_pid, 0)
        if pid == child:
            found = status
        elif number := _killed_by(status):
            killed.append((name, number))


def _killed_by(status: int) -> int:
    """The signal that ended a process; 0 for none, and for SIGHUP, which tells of another's end."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return 0 if number == signal.SIGHUP else number


def _name(pid: int) -> str:
    """The kernel's name for what a process ran, also for one that has ended and was not waited for yet."""
    with open(f"/proc/{pid}/comm", errors="replace") as file:  # noqa: PTH123
        return file.read().strip()


if __name__ == "__main__":
    main()
