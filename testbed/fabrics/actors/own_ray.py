"""Ray, started for one run alone, and a watch over the processes that it and the roles are.

Ray notices late, or not at all, that a part of it died or stands still: without the GCS a run goes on for a minute and
then ends in the middle of a line. The watch asks the kernel instead.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import ray
from ray.job_config import JobConfig

from testbed.emulation import processes
from testbed.errors import RoleDied, RunError
from testbed.fabrics.actors.forkserver import ENVIRONMENT, ForkServer

PARTS = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}  # by the kernel's name for the process
OBJECT_STORE_BYTES = 100 << 20  # nothing big goes through Ray: messages and states do not
STOP_S = 5.0


@contextmanager
def _set(environment: Mapping[str, str]) -> Iterator[None]:
    """For what is started meanwhile; this process itself has looked at its GPUs, and keeps those that it has seen."""
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    yield
    for key, value in before.items():
        if value is None:
            del os.environ[key]
        else:
            os.environ[key] = value


class OwnRay:
    """Ray, with its sockets and logs in the folder `scratch`; its workers are forks of `forks`, in `environment`.

    Raises
    ------
    RunError
        It does not start.
    """

    def __init__(self, scratch: Path, forks: ForkServer, environment: Mapping[str, str]) -> None:
        os.environ.update(ENVIRONMENT)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with forks.in_place_of_python(), _starting(scratch / "ray-start"), _set(environment):
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=OBJECT_STORE_BYTES,
                job_config=JobConfig(_client_job=True),  # else the current folder comes first on the actors' sys.path
                _node_ip_address="127.0.0.1",
                _temp_dir=str(scratch / "ray"),
            )
        for number, handler in handlers.items():  # Ray has put its own in place, which abort the process
            signal.signal(number, handler)
        running = processes.children(os.getpid())
        self._parts = {title: running[name] for name, title in PARTS.items() if name in running}

    def check(self, roles: Mapping[str, int]) -> None:
        """Raise RunError where a part of Ray, or one of the roles' processes, died; where a part of Ray is stopped."""
        for title, pid in self._parts.items():
            if ailment := processes.ailment(pid):
                raise RunError(f"{title} {ailment}, on which the processes of all roles depend")
        for role, pid in roles.items():
            if processes.ailment(pid) == "died":
                raise RoleDied(f"{role}: its process died")

    def find_cause(self, error: RunError, roles: Mapping[str, int], actors: Mapping[str, Any]) -> None:
        """Raise RunError where a role's process is stopped, which is no fault as long as nobody has waited too long."""
        if stopped := [role for role, pid in roles.items() if processes.ailment(pid)]:
            raise RunError(f"{', '.join(stopped)}: stopped by a signal")

    def look(self, roles: Mapping[str, int]) -> dict[str, tuple[float, str]]:
        """How long each role's process has worked (seconds), and what ails it."""
        return {role: (processes.worked_s(pid), processes.ailment(pid)) for role, pid in roles.items()}

    def end(self, actors: Iterable[Any], pids: Collection[int]) -> None:
        """End the actors, and wait until their processes are gone; those that take their time are killed."""
        if not self._ailing:
            for actor in actors:
                ray.kill(actor)
            _await_end(pids, STOP_S)
        _kill(pids)
        _await_end(pids, STOP_S)

    def close(self) -> None:
        """End Ray; safe to call twice."""
        if self._ailing:
            _kill(self._parts.values())
            atexit.register(_leave)  # before Ray's own handlers
        else:
            ray.shutdown()

    @property
    def _ailing(self) -> bool:
        return any(processes.ailment(pid) for pid in self._parts.values())


@contextmanager
def _starting(log: Path) -> Iterator[None]:
    """Standard error, also that of libraries, goes to a file: Ray's tells the user something only where it fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception as error:
        failure = RunError(f"Ray does not start: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        failure.add_note(log.read_text(errors="replace"))
        raise failure from error
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _leave() -> None:
    """End this process as a failed run's; without a raylet Ray's library crashes where it is taken down in order."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(RunError.exit_code)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _await_end(pids: Collection[int], timeout_s: float) -> None:
    deadline_s = monotonic() + timeout_s
    while any(processes.ailment(pid) != "died" for pid in pids) and monotonic() < deadline_s:
        sleep(0.01)
