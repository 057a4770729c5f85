"""What Ray starts in the place of Python: hands its workers to the fork server, and is Python for nearly anything else.

Not for Ray's autoscaler and its reader of logs, which nobody asks here, and which import for two seconds beside the
roles that are to start: in their place it waits until it is ended.

Run by an isolated interpreter, `launcher.py SOCKET PYTHON ARGUMENTS...`; it imports nothing but the standard library,
and little of that: a role's start is this script's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

SETUP, WORKER = "setup_worker.py", "default_worker.py"  # of Ray: the first, where it is there, becomes the second
IDLE = {"monitor.py", "log_monitor.py"}  # of Ray: its autoscaler, its reader of logs


def main() -> None:
    """Have the worker forked, or become what was to be started."""
    address, python, *arguments = sys.argv[1:]
    scripts = [os.path.basename(word) for word in arguments]  # noqa: PTH119
    if WORKER in scripts and set(scripts[: scripts.index(WORKER)]) <= {SETUP, "-s", "-S"}:
        with suppress(OSError):  # nobody is there any more
            if _forked(address, arguments[scripts.index(WORKER) :]):
                return
    if IDLE & set(scripts[:2]):  # the script, behind an option of Python's
        while True:
            signal.pause()
    os.execv(python, [python, *arguments])


def _forked(address: str, arguments: list[str]) -> bool:
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"\0"], [0, 1, 2])
        server.sendall(json.dumps(request).encode())
        server.shutdown(socket.SHUT_WR)
        return bool(server.recv(1))


if __name__ == "__main__":
    main()
