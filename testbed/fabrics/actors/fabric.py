"""Plays roles as Ray actors: starts them, brings each system and seed to them, watches a segment, ends them.

What network lies between the actors is the subclass's: where each role stands, and what is watched and recorded of the
links while a segment plays. So is how files get to and from the actors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shutil import rmtree
from time import monotonic
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from testbed.errors import NotFinite, PeerLost, PeerTimeout, RoleDied, RunError, TestbedError
from testbed.experiment.assembly import Assembly
from testbed.fabrics.actors.silence import MARGIN_S, Doing, Silence
from testbed.fabrics.base import Fabric, SavedStates, TraceEnded, probe_folder
from testbed.record import lines
from testbed.systems import System

START_S, START_EACH_S = 60.0, 30.0  # for processes to import torch, side by side on cores that may be few and busy
LOOK_S = 1.0  # so often is looked whether what a run stands on is there
ANSWER_S = 5.0  # a role that computes does not answer meanwhile
WORKING = 0.1  # of a processor: one that does not answer and takes that much computes


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

    def watch(self) -> None:
        """Raise NetworkError where nothing crosses the network any more."""

    def close(self, clock_s: float) -> None: ...


class Engine(Protocol):
    """What the roles' processes stand on; `pids` are theirs, by role."""

    def check(self, pids: Mapping[str, int]) -> None:
        """Raise RunError where a part of it, or one of the processes, died; where a part of it is stopped."""

    def find_cause(self, error: RunError, pids: Mapping[str, int], actors: Mapping[str, Any]) -> None:
        """Raise RunError where something that stands still, or is gone, has made a role fail with `error`."""

    def look(self, pids: Mapping[str, int]) -> dict[str, tuple[float, str]]:
        """How long each process has worked (seconds), and what ails it: "died", "is stopped" or ""."""

    def end(self, actors: Iterable[Any], pids: Collection[int]) -> None:
        """End the actors."""

    def close(self) -> None:
        """Let go of it; safe to call twice."""


class ActorFabric(Fabric):
    """A fabric whose roles are Ray actors.

    Parameters
    ----------
    assembly : the experiment's parts, for this process
    device : where the actors' math runs

    Attributes
    ----------
    dilation : real seconds per second of the run's clock
    lead_s : actors are told this long before a segment when it starts
    """

    dilation = 1.0
    lead_s = 0.2

    def __init__(self, assembly: Assembly, device: str) -> None:
        self.record = self.observe = lambda event: None
        self._assembly = assembly
        self._experiment = assembly.experiment
        self._roles = self._experiment.roles
        self._system: System
        self._clock_s = 0.0
        self._device = device
        self._engine: Engine | None = None
        self._pids: dict[str, int] = {}
        self._actors: dict[str, Any] = {}  # Ray's actor handles, whose methods no type checker knows
        self._playing: dict[str, Any] = {}  # those that have a part in the system that is played

    # What the network decides

    @abstractmethod
    def _start_actors(self) -> dict[str, Any]:
        """A new actor for each role."""

    @abstractmethod
    def _meter(self, start_s: float) -> Meter:
        """What watches the network from `start_s` on the monotonic clock."""

    @abstractmethod
    def _changing(self, start_s: float) -> AbstractContextManager[None]:
        """Within it the network changes as the experiment says."""

    @abstractmethod
    def _check_network(self) -> None:
        """Raise NetworkError where the network is not what it is to be at this moment."""

    # The roles

    def _join_actors(self) -> None:
        """Have the new actors connect to each other."""
        self._all("connect", within_s=self._starting_s)

    def _start_roles(self) -> None:
        self._actors = self._playing = self._start_actors()
        self._pids = self._all("ready", within_s=self._starting_s)
        self._join_actors()

    @property
    def _starting_s(self) -> float:
        return max(self._experiment.run.patience_s, START_S + START_EACH_S * len(self._actors))

    def _stop_roles(self) -> None:
        if self._engine:
            self._engine.end(self._actors.values(), self._pids.values())  # so that nobody records any more
        self._actors, self._playing, self._pids = {}, {}, {}

    def begin(self, system: str, seed: int, records: Path, clock_s: float, checkpoint: Path | None) -> None:
        if not self._actors:  # stopped where the trace ended, with messages under way
            self._start_roles()
        self._system = self._assembly.system(system, seed)
        self._playing = {role: self._actors[role] for role in self._system.task.roles.all}
        self._clock_s = clock_s
        self._events = lines.Follower(records / lines.FILE_NAME)
        steps = self.probe_steps if self.probe is not None else None
        self._prepare(system, seed, checkpoint, records, steps)

    def _prepare(self, system: str, seed: int, checkpoint: Path | None, records: Path, steps: int | None) -> None:
        """Have the roles begin; `steps` is between two probes."""
        kept = str(checkpoint) if checkpoint else None
        self._all("begin", system, seed, kept, str(records), steps, within_s=self._starting_s)

    def segment(self, stop_at: int) -> float:
        start_s = monotonic() + self.lead_s
        meter = self._meter(start_s)
        with self._finding_cause():
            try:
                with self._changing(start_s):
                    clocks = self._play(stop_at, start_s, meter)
            except TraceEnded as end:
                self._stop_roles()
                meter.close(end.clock_s)
                self._check_network()
                raise
            self._clock_s = max(clocks)
            meter.close(self._clock_s)
        self._check_network()
        return self._clock_s

    def _play(self, stop_at: int, start_s: float, meter: Meter) -> list[float]:
        pending = self._started(stop_at, start_s)
        silence = Silence(self._experiment.run.patience_s * self.dilation + MARGIN_S)
        clocks = []
        while pending:
            for reference in self._done(pending, meter.until_next_s()):
                clocks.append(answer_of(pending.pop(reference), reference))
                silence.heard()
            meter.watch()
            meter.sample_when_due()
            for event in self._events.new():
                if event.node:  # the others are this process's own
                    silence.heard()
                    self.observe(event)
            if pending and meter.now_s >= meter.end_s:
                raise TraceEnded(meter.end_s)
            if pending and silence.too_long:
                silence.judge(self._doing())
        return clocks

    def _started(self, stop_at: int, start_s: float) -> dict[Any, str]:
        """Ray's references to the segments that the roles play from `start_s` on."""
        return {actor.segment.remote(stop_at, start_s, self._clock_s): role for role, actor in self._playing.items()}

    def _done(self, pending: Mapping[Any, str], timeout_s: float) -> list[Any]:
        """Of the calls under way those that are answered, within a second or `timeout_s`."""
        assert self._engine
        self._engine.check(self._pids)
        done, _ = ray.wait(list(pending), timeout=min(max(timeout_s, 0.0), LOOK_S))
        return done

    def _doing(self) -> dict[str, Doing]:
        """What each role is at; one that cannot be asked may compute."""
        assert self._engine
        before = self._engine.look(self._pids)
        asked: dict[Any, str] = {actor.doing.remote(): role for role, actor in self._playing.items()}
        answered, mute = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
        doing: dict[str, Doing] = {asked[each]: answer_of(asked[each], each) for each in answered}
        now = self._engine.look({asked[each]: self._pids[asked[each]] for each in mute}) if mute else {}
        for role, (worked_s, ailment) in now.items():
            works = worked_s - before[role][0] > WORKING * ANSWER_S
            doing[role] = Doing(monotonic() if works else 0.0, ailment=ailment or "does not answer")
        return doing

    @contextmanager
    def _finding_cause(self) -> Iterator[None]:
        """Where what makes the run fail is not the role that says so, the error raised says what it is."""
        try:
            yield
        except RunError as error:
            assert self._engine
            try:
                self._engine.check(self._pids)
                self._check_network()
                self._engine.find_cause(error, self._pids, self._actors)
            except RunError as cause:
                if str(cause) != str(error):
                    cause.add_note(f"seen by a role as: {error}")
                raise cause from None
            raise

    def save(self, folder: Path) -> None:
        times_s: dict[int, list[float]] = {}
        for of_role in self._saved(folder):
            for step, time_s in of_role.items():
                times_s.setdefault(step, []).append(time_s)
        for step, when_s in sorted(times_s.items()):
            # A region that was left out has not made every step: of such a step there is no model of all.
            if self.probe is not None and len(when_s) == len(self._system.shown_by):
                self.probe(step, max(when_s), self.states(probe_folder(folder, step)))
            rmtree(probe_folder(folder, step))

    def _saved(self, folder: Path) -> Iterable[Mapping[int, float]]:
        """Have all roles' files written to `folder`; when each role had made the steps of its probes."""
        return self._all("save", str(folder)).values()

    def states(self, folder: Path) -> Mapping[str, Any]:
        return SavedStates(folder, self._system.initial_state, self._system.task.roles.all)

    def _all(
        self,
        method: str,
        *arguments: Any,
        within_s: float | None = None,
        own: Mapping[str, tuple[Any, ...]] | None = None,
    ) -> dict[str, Any]:
        """Call a method of every actor that plays at once and return their answers; the first failure is the run's.

        `within_s`: real seconds; the experiment's patience when None. `own`: further arguments, by role.
        """
        more = own or {}
        pending: dict[Any, str] = {
            getattr(actor, method).remote(*arguments, *more.get(role, ())): role
            for role, actor in self._playing.items()
        }
        answers: dict[str, Any] = {}
        deadline_s = monotonic() + (self._experiment.run.patience_s if within_s is None else within_s)
        with self._finding_cause():
            while pending:
                for reference in self._done(pending, deadline_s - monotonic()):
                    role = pending.pop(reference)
                    answers[role] = answer_of(role, reference)
                if pending and monotonic() > deadline_s:
                    raise RunError(f"{', '.join(pending.values())}: no answer to '{method}' in time")
        return answers

    def close(self) -> None:
        self._stop_roles()
        if self._engine:
            self._engine.close()
            self._engine = None


def answer_of(role: str, reference: Any) -> Any:
    """What an actor's method returned; its failure as this run's, naming the role."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        line = str(cause) if isinstance(cause, TestbedError) else f"{type(cause).__name__}: {cause}"
        waited, diverged = isinstance(cause, PeerLost | PeerTimeout), isinstance(cause, NotFinite)
        failure = RoleDied(f"{role} failed: {line.splitlines()[0]}", waited, diverged=diverged)
        failure.add_note(str(error))
        raise failure from None
    except ActorUnavailableError:  # Ray will know why in a while
        raise RoleDied(f"{role}: its process cannot be reached any more", waited=True) from None
    except RayActorError as error:
        raise RoleDied(f"{role}: its process died: {str(error).splitlines()[0]}", gone=role) from None
