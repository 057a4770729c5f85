"""Starts roles' processes fast: Ray's workers are forks of a process that has imported everything and read the data.

A worker of Ray's is an interpreter that imports Ray, torch and the testbed, and then opens the model and the data set:
seconds, and the same for each role. Here one process does it once, beside the building of the network, and Ray is told
that Python is `launcher`, which asks that process for a fork and ends. The fork does what Ray's own scripts do from
there on: it is a worker as any other, with a process of its own that process 1 waits for, and what it does not write to
it shares with the others. Where there is no server, or none that can fork, the launcher starts a worker as Ray does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from testbed.interpreter import PYTHON

LAUNCHER = Path(__file__).with_name("launcher.py")
# Of all processes of a run.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_BACKEND_LOG_LEVEL": "error",
    "OMP_NUM_THREADS": "1",  # and a process with threads could not be forked
}
STARTED_S = 120.0  # to import it all, on a busy machine


class ForkServer:
    """The server's process, as the one that starts it sees it.

    Parameters
    ----------
    scratch : a folder with a short path, for its socket
    experiment : as `Experiment.as_dict` gives it; what roles need of it is prepared before any fork
    """

    def __init__(self, scratch: Path, experiment: dict[str, Any]) -> None:
        self._address, self._python = scratch / "fork", scratch / "python"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._address))
            listener.listen(128)
            self._process = subprocess.Popen(
                [*PYTHON, "-m", __name__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where it ends too soon, a role fails by itself and says so
                pass_fds=[listener.fileno()],
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(experiment).encode() + b"\n")
            self._process.stdin.flush()
        here = " ".join(map(quote, (sys.executable, "-I", "-S", str(LAUNCHER), str(self._address), PYTHON[0])))
        self._python.write_text(f'#!/bin/sh\nexec {here} "$@"\n')
        self._python.chmod(0o700)

    def wait(self) -> None:
        """Return once it can fork, or has ended since it cannot."""
        assert self._process.stdout
        select.select([self._process.stdout], [], [], STARTED_S)

    @contextmanager
    def in_place_of_python(self) -> Iterator[None]:
        """Within it Ray, which starts its processes with the Python that it runs in, starts them with the launcher."""
        if os.access(self._python, os.X_OK):  # not where the file system is mounted with noexec
            sys.executable = str(self._python)
        try:
            yield
        finally:
            sys.executable = PYTHON[0]

    def close(self) -> None:
        """End it; what it has forked goes on."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()


def serve(listener: socket.socket) -> None:
    """Fork a worker for each request, until standard input ends."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        with connection:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
            request = json.loads(b"".join(iter(partial(connection.recv, 1 << 16), b"")))
            # The worker is a grandchild, so that it becomes process 1's: it waits for it, and notes how it ended.
            child = os.fork()
            if not child:
                if os.fork():
                    os._exit(0)
                listener.close()
                connection.send(b"\0")
                connection.close()
                _work(request, descriptors)
            os.waitpid(child, 0)
            for descriptor in descriptors:
                os.close(descriptor)


def _work(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the worker: what Ray's `setup_worker.py` and then its `default_worker.py` do, in this process."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])  # which Ray's library reads as it is loaded, once
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    known, sys.argv = parser.parse_known_args(request["argv"])
    update_envs(RuntimeEnvContext.deserialize(known.serialized_runtime_env_context).env_vars)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Import and open what roles need, say so on standard output, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    listener = socket.socket(fileno=int(sys.argv[1]))
    experiment = sys.stdin.readline().strip()

    from testbed.fabrics.actors.actor import warm_up  # imports no Ray (see `_work`)

    warm_up(experiment)
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        sys.exit("a process with threads cannot be forked")
    gc.freeze()  # a collection would write to, and so copy, what is shared
    sys.stdout.write("\n")
    sys.stdout.flush()
    serve(listener)


if __name__ == "__main__":
    main()
