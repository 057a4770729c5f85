"""Plays roles as Ray actors: starts them, brings each system and seed to them, watches a segment, ends them.

What network lies between the actors is the subclass's: where each role stands, and what is watched and recorded of the
links while a segment plays.
"""

from __future__ import annotations

import os
import signal
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from shutil import rmtree
from time import monotonic, sleep
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayTaskError

from testbed.errors import RoleDied, RunError, TestbedError
from testbed.experiment.assembly import Assembly
from testbed.fabrics.actors.actor import Place, RoleActor
from testbed.fabrics.base import Fabric, SavedStates, TraceEnded, probe_folder
from testbed.record import lines
from testbed.systems import System

LEAD_S = 0.2  # actors are told this long before a segment when it starts
STOP_S = 5.0
OBJECT_STORE_BYTES = 100 << 20  # nothing big goes through Ray: messages and states do not


class Meter(Protocol):
    """What records a network while a segment plays on it."""

    end_s: float
    """When the run is to end, on its clock; infinity for never."""

    @property
    def now_s(self) -> float:
        """What the run's clock shows."""

    def until_next_s(self) -> float:
        """Real seconds until a sample is due, or the run ends."""

    def sample_when_due(self) -> None: ...

    def close(self, clock_s: float) -> None: ...


class ActorFabric(Fabric):
    """A fabric whose roles are Ray actors.

    Parameters
    ----------
    assembly : the experiment's parts, for this process
    device : where the actors' math runs
    """

    def __init__(self, assembly: Assembly, device: str) -> None:
        self.record = self.observe = lambda event: None
        self._assembly = assembly
        self._experiment = assembly.experiment
        self._roles = self._experiment.roles
        self._system: System
        self._clock_s = 0.0
        self._device = device
        self._pids: list[int] = []
        self._actors: dict[str, Any] = {}  # Ray's actor handles, whose methods no type checker knows
        self._playing: dict[str, Any] = {}  # those that have a part in the system that is played

    # What the network decides

    @abstractmethod
    def _places(self) -> Mapping[str, Place]:
        """Where each role stands."""

    @abstractmethod
    def _meter(self, start_s: float) -> Meter:
        """What watches the network from `start_s` on the monotonic clock."""

    @abstractmethod
    def _changing(self, start_s: float) -> AbstractContextManager[None]:
        """Within it the network changes as the experiment says."""

    # The roles

    def _start_roles(self) -> None:
        self._actors = self._playing = _start_actors(self._assembly, self._device, self._places())
        self._pids = self._all("ready")
        self._all("connect")

    def _stop_roles(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor)
        _await_end(self._pids)  # so that nobody records any more
        self._actors, self._playing, self._pids = {}, {}, []

    def begin(self, system: str, seed: int, records: Path, clock_s: float, checkpoint: Path | None) -> None:
        if not self._actors:  # stopped where the trace ended, with messages under way
            self._start_roles()
        self._system = self._assembly.system(system, seed)
        self._playing = {role: self._actors[role] for role in self._system.task.roles.all}
        self._clock_s = clock_s
        self._events = lines.Follower(records / lines.FILE_NAME)
        steps = self.probe_steps if self.probe is not None else None
        self._all("begin", system, seed, str(checkpoint) if checkpoint else None, str(records), steps)

    def segment(self, stop_at: int) -> float:
        start_s = monotonic() + LEAD_S
        meter = self._meter(start_s)
        try:
            with self._changing(start_s):
                clocks = self._play(stop_at, start_s, meter)
        except TraceEnded as end:
            self._stop_roles()
            meter.close(end.clock_s)
            raise
        self._clock_s = max(clocks)
        meter.close(self._clock_s)
        return self._clock_s

    def _play(self, stop_at: int, start_s: float, meter: Meter) -> list[float]:
        pending = {actor.segment.remote(stop_at, start_s, self._clock_s): role for role, actor in self._playing.items()}
        clocks = []
        while pending:
            done, _ = ray.wait(list(pending), timeout=meter.until_next_s())
            for reference in done:
                clocks.append(_answer(pending.pop(reference), reference))
            meter.sample_when_due()
            for event in self._events.new():
                if event.node:  # the others are this process's own
                    self.observe(event)
            if pending and meter.now_s >= meter.end_s:
                raise TraceEnded(meter.end_s)
        return clocks

    def save(self, folder: Path) -> None:
        times_s: dict[int, float] = {}
        for of_role in self._all("save", str(folder)):
            for step, time_s in of_role.items():
                times_s[step] = max(time_s, times_s.get(step, 0.0))
        for step, time_s in sorted(times_s.items()):
            if self.probe is not None:
                self.probe(step, time_s, self.states(probe_folder(folder, step)))
            rmtree(probe_folder(folder, step))

    def states(self, folder: Path) -> Mapping[str, Any]:
        return SavedStates(folder, self._system.initial_state, self._system.task.roles.all)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every actor that plays at once and return all answers; the first failure is the run's."""
        pending: dict[Any, str] = {
            getattr(actor, method).remote(*arguments): role for role, actor in self._playing.items()
        }
        answers: list[Any] = []
        deadline_s = monotonic() + self._experiment.run.patience_s
        while pending:
            done, _ = ray.wait(list(pending), timeout=max(deadline_s - monotonic(), 0.0))
            if not done:
                raise RunError(f"{', '.join(pending.values())}: no answer to '{method}' in time")
            answers += [_answer(pending.pop(reference), reference) for reference in done]
        return answers

    def close(self) -> None:
        self._stop_roles()
        if ray.is_initialized():
            ray.shutdown()


def start_ray(scratch: Path) -> None:
    """Start Ray for this run alone, its sockets and logs in `scratch`."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_DEDUP_LOGS="0",
        RAY_AUTH_MODE="disabled",
        RAY_BACKEND_LOG_LEVEL="error",
        OMP_NUM_THREADS="1",
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(scratch / "ray"),
    )
    for number, handler in handlers.items():  # Ray has put its own in place, which abort the process
        signal.signal(number, handler)


def _start_actors(assembly: Assembly, device: str, places: Mapping[str, Place]) -> dict[str, Any]:
    """One actor a role; the workers share the GPU where the math runs on one."""
    experiment = assembly.experiment
    on_gpu = experiment.roles.workers if device.startswith("cuda") else ()
    data = experiment.as_dict()
    actor_class: Any = ray.remote(RoleActor)  # Ray's types do not know what options() returns
    actors: dict[str, Any] = {}
    for role, place in places.items():
        share = 1 / len(on_gpu) if role in on_gpu else 0
        kind = actor_class.options(num_cpus=0, num_gpus=share, max_concurrency=8, max_restarts=0)
        actors[role] = kind.remote(data, device if role in on_gpu else "cpu", place)
    return actors


def _await_end(pids: list[int]) -> None:
    """Wait until the actors' processes are gone; kill those that take their time."""
    deadline_s = monotonic() + STOP_S
    while any(_is_running(pid) for pid in pids) and monotonic() < deadline_s:
        sleep(0.01)
    for pid in filter(_is_running, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    """Whether a process lives; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _answer(role: str, reference: Any) -> Any:
    """What an actor's method returned; its failure as this run's, naming the role."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        line = str(cause) if isinstance(cause, TestbedError) else f"{type(cause).__name__}: {cause}"
        failure = RoleDied(f"{role} failed: {line.splitlines()[0]}")
        failure.add_note(str(error))
        raise failure from None
    except RayActorError as error:
        raise RoleDied(f"{role}: its process died: {str(error).splitlines()[0]}") from None
