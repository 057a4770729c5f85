"""A stand-in for `mnexec`, the helper that Mininet starts every node with.

PyPI's Mininet brings no `mnexec`; Debian's package does. The options that Mininet uses are all here: -c close
descriptors, -d detach from the terminal, -n new network and mount namespaces, -p print the process id,
-a PID attach to a process's namespaces, -r PRIORITY run with real-time priority, -v print the version.
(-g, cgroups, is only used by CPULimitedHost and refused.)

It is run as a script by an isolated interpreter, so it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import getopt
import os
import shlex
import shutil
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18


def main(arguments: list[str]) -> None:
    """Do what the options ask in the order given, then become the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        options, command = getopt.getopt(arguments, "cdnpa:r:vh")
        for option, value in options:
            _obey(libc, option, value)
        if command:
            _become(command)
    except getopt.GetoptError as error:
        sys.exit(f"mnexec: {error}; usage: mnexec [-cdnpv] [-a PID] [-r PRIORITY] COMMAND...")
    except OSError as error:
        sys.exit(f"mnexec: {error.filename or 'cannot go on'}: {error.strerror}")


def _become(command: list[str]) -> None:
    """Run a command in this process's place; an error names it, whatever folder of the PATH was to blame."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"mnexec: {command[0]}: {error.strerror}")


def _obey(libc: ctypes.CDLL, option: str, value: str) -> None:
    match option:
        case "-c":
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        case "-d":
            if os.getpgrp() == os.getpid() and os.fork():
                os._exit(0)  # a group leader cannot start a session; its child can
            os.setsid()
        case "-p":
            print(f"\001{os.getpid()}", flush=True)
        case "-n":
            _check(libc.unshare(CLONE_NEWNET | CLONE_NEWNS), "unshare")
            _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "/")
        case "-a":
            _attach(libc, int(value))
        case "-r":
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(int(value)))
        case "-v":
            print("2.3.0 (stand-in)")
            sys.exit(0)
        case "-h":
            print(__doc__)
            sys.exit(0)


def _attach(libc: ctypes.CDLL, pid: int) -> None:
    folder = Path.cwd()
    for kind, flag in (("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS)):
        path = f"/proc/{pid}/ns/{kind}"
        descriptor = os.open(path, os.O_RDONLY)
        _check(libc.setns(descriptor, flag), path)
        os.close(descriptor)
    os.chdir(folder)  # entering a mount namespace moves the process to its root


def _check(status: int, name: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def install(folder: Path) -> None:
    """Put a launcher for the stand-in into `folder`, and that on this process's PATH, unless there is an `mnexec`."""
    if shutil.which("mnexec"):
        return
    folder.mkdir(parents=True, exist_ok=True)
    launcher = folder / "mnexec"
    command = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).resolve())])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    launcher.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


if __name__ == "__main__":
    main(sys.argv[1:])
