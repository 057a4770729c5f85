"""Plays runs on a Mininet network with Ray actors; runs inside a sandbox (`emulation.sandbox`)."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from testbed.assembly import Assembly, threads
from testbed.compute import compute_model
from testbed.errors import RoleDied, RunError, TestbedError
from testbed.experiment import Experiment
from testbed.fabrics.base import Fabric, SavedStates, TraceEnded
from testbed.fabrics.emulation.network import EmulatedNetwork
from testbed.fabrics.mininet.actor import Place, RoleActor
from testbed.fabrics.mininet.replay import Lateness, TracePlayer
from testbed.fabrics.mininet.wire import Endpoint
from testbed.record import lines
from testbed.record.events import LinkBytes
from testbed.systems import System
from testbed.wan.plan import Roles, kind_of
from testbed.wan.trace import Change

FIRST_PORT = 5500
LEAD_S = 0.2  # actors are told this long before a segment when it starts
STOP_S = 5.0
OBJECT_STORE_BYTES = 100 << 20  # nothing big goes through Ray: messages and states do not
FIT_MARGIN = 1.25  # the real math of a step must fit into the modelled time with this much to spare


class MininetFabric(Fabric):
    """The emulated fabric.

    Parameters
    ----------
    assembly : the experiment's parts, for this process
    device : where the actors' math runs
    scratch : a folder of the run's own with a short path, for Ray's sockets and logs, and the messages' stamps
    gate : is given the network before any role starts, raises NetworkError if it is not what the profile says, and
        returns what it found; None for no gate
    """

    name = "mininet"

    def __init__(
        self,
        assembly: Assembly,
        device: str,
        scratch: Path,
        gate: Callable[[EmulatedNetwork], dict[str, Any]] | None,
    ) -> None:
        self.record = self.observe = lambda event: None
        self.dilation = choose_dilation(assembly)
        self._assembly = assembly
        self._experiment = assembly.experiment
        self._roles = self._experiment.roles
        self._system: System
        self._clock_s = 0.0
        self._trace, self._lateness = self._experiment.trace, Lateness()
        self._device = device
        self._stamps = scratch / "stamps"
        self._stamps.mkdir()
        self._pids: list[int] = []
        self._actors: dict[str, Any] = {}  # Ray's actor handles, whose methods no type checker knows
        self._network: EmulatedNetwork | None = None
        try:
            self._network = network = EmulatedNetwork(self._experiment.plan, self.dilation)
            self._gate_report = gate(network) if gate is not None else {"skipped": True}
            _start_ray(scratch)
            self._start_roles(network)
        except BaseException:
            self.close()
            raise

    def _start_roles(self, network: EmulatedNetwork) -> None:
        self._actors = _start_actors(self._experiment, self._device, network, self.dilation, self._stamps)
        self._pids = self._all("ready")
        self._all("connect")

    def _stop_roles(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor)
        _await_end(self._pids)  # so that nobody records any more
        self._actors, self._pids = {}, []

    def describe(self) -> dict[str, Any]:
        assert self._network is not None
        return {
            "delay_mechanism": self._network.delay_mechanism,
            "dilation": self.dilation,
            "gate": self._gate_report,
        }

    def delay_report(self) -> dict[str, Any]:
        """How the delay stage (`emulation.delay`) and the trace's player (`Lateness`) have done so far."""
        assert self._network is not None
        return {**self._network.delay_report(), **self._lateness.report()}

    def begin(self, system: str, seed: int, records: Path, clock_s: float, checkpoint: Path | None) -> None:
        assert self._network is not None
        if not self._actors:  # stopped where the trace ended, with messages under way
            self._start_roles(self._network)
        self._system = self._assembly.system(system, seed)
        self._clock_s = clock_s
        self._trace_done_s = clock_s if clock_s > 0 else -1.0  # a change at 0 is the first segment's to record
        self._undo_trace()
        self._events = lines.Follower(records / lines.FILE_NAME)
        self._all("begin", system, seed, str(checkpoint) if checkpoint else None, str(records))

    def segment(self, stop_at: int) -> float:
        start_s = monotonic() + LEAD_S
        meter = _Meter(self, start_s, self._clock_s)
        try:
            with self._replaying(start_s):
                clocks = self._play(stop_at, start_s, meter)
        except TraceEnded as end:
            self._stop_roles()
            meter.close(end.clock_s)
            raise
        self._clock_s = max(clocks)
        meter.close(self._clock_s)
        return self._clock_s

    @contextmanager
    def _replaying(self, start_s: float) -> Iterator[None]:
        """Let the WAN follow the experiment's trace, if it has one, from `start_s` on the monotonic clock."""
        if self._trace is None:
            yield
            return
        player = TracePlayer(self._trace, self._change, self._trace_done_s, self._clock_s, start_s, self.dilation)
        try:
            yield
        finally:
            made = player.stop()
            self._trace_done_s = player.done_s
            for change in made:
                self.record(change)
                self._lateness.add(change)

    def _undo_trace(self) -> None:
        """Put back what the run before has left changed."""
        for pair in dict.fromkeys(change.pair for change in self._trace.changes) if self._trace else ():
            link = self._experiment.plan.profile.link(*pair)
            self._change(Change(0.0, *pair, link.goodput_mbit, link.rtt_ms))

    def _change(self, change: Change) -> None:
        assert self._network is not None
        self._network.set_rate(change.src, change.dst, change.goodput_mbit)
        if change.delay_s is not None:
            self._network.set_delay(change.src, change.dst, change.delay_s)

    def _play(self, stop_at: int, start_s: float, meter: _Meter) -> list[float]:
        pending = {actor.segment.remote(stop_at, start_s, self._clock_s): role for role, actor in self._actors.items()}
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
        self._all("save", str(folder))

    def states(self, folder: Path) -> Mapping[str, Any]:
        return SavedStates(folder, self._system.initial_state, self._roles.all)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every actor at once and return all answers; the first failure is the run's."""
        pending: dict[Any, str] = {
            getattr(actor, method).remote(*arguments): role for role, actor in self._actors.items()
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
        if self._network is not None:
            self._network.close()
            self._network = None

    def sent_bytes(self) -> dict[str, int]:
        """Bytes that have left on each link since the network was built."""
        assert self._network is not None
        return {name: counter.wire_bytes for name, counter in self._network.counters().items()}


class _Meter:
    """Records the links' bytes once an interval of the run's clock while a segment plays, until its trace ends."""

    def __init__(self, fabric: MininetFabric, start_s: float, clock_s: float) -> None:
        self._fabric = fabric
        trace = fabric._trace
        self.end_s = math.inf if trace is None or trace.end_s is None else trace.end_s
        self._start_s = start_s
        self._first_s = self._since_s = clock_s
        self._interval_s = fabric._experiment.run.link_interval_s
        self._next_s = (math.floor(clock_s / self._interval_s) + 1) * self._interval_s
        self._before = fabric.sent_bytes()

    @property
    def now_s(self) -> float:
        """What the run's clock shows."""
        return self._first_s + (monotonic() - self._start_s) / self._fabric.dilation

    def until_next_s(self) -> float:
        """Real seconds until the next sample is due, or the trace ends."""
        return min(max((min(self._next_s, self.end_s) - self.now_s) * self._fabric.dilation, 0.0), 1.0)

    def sample_when_due(self) -> None:
        now_s = self.now_s
        if now_s >= self._next_s:
            self._sample(now_s)
            self._next_s = (math.floor(now_s / self._interval_s) + 1) * self._interval_s

    def close(self, clock_s: float) -> None:
        self._sample(clock_s)

    def _sample(self, clock_s: float) -> None:
        totals = self._fabric.sent_bytes()
        for link, total in totals.items():
            if crossed := total - self._before[link]:
                interval_s = clock_s - self._since_s
                self._fabric.record(LinkBytes(time_s=clock_s, link=link, interval_s=interval_s, wire_bytes=crossed))
        self._before, self._since_s = totals, clock_s


def choose_dilation(assembly: Assembly) -> float:
    """The factor k: as the experiment says, or the smallest at which the real math fits the modelled device.

    All workers compute at the same time on this machine's cores, each on one thread.
    """
    compute = assembly.experiment.compute
    if compute.dilation != "auto":
        return float(compute.dilation)
    device = compute_model(compute.device).device
    if device is None:
        return 1.0
    task = assembly.task(0)
    learner = task.learner(0)
    with threads(1):
        took_s = min(_timed(lambda: learner.gradient(task.initial, 0)) for _ in range(5))
    rounds = math.ceil(len(task.roles.workers) / len(os.sched_getaffinity(0)))
    return max(1.0, math.ceil(10 * FIT_MARGIN * took_s * rounds / device.seconds(task.gradient_work)) / 10)


def _timed(fn: Callable[[], object]) -> float:
    began_s = perf_counter()
    fn()
    return perf_counter() - began_s


def _start_ray(scratch: Path) -> None:
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


def _start_actors(
    experiment: Experiment, device: str, network: EmulatedNetwork, dilation: float, stamps: Path
) -> dict[str, Any]:
    """One actor a role."""
    endpoints = _endpoints(experiment.roles, network, stamps)
    on_gpu = experiment.roles.workers if device.startswith("cuda") else ()
    data = experiment.as_dict()
    actor_class: Any = ray.remote(RoleActor)  # Ray's types do not know what options() returns
    actors: dict[str, Any] = {}
    for role in experiment.roles.all:
        place = Place(role, network.hosts[role].netns_pid, endpoints[role], dilation)
        share = 1 / len(on_gpu) if role in on_gpu else 0
        kind = actor_class.options(num_cpus=0, num_gpus=share, max_concurrency=8, max_restarts=0)
        actors[role] = kind.remote(data, device if role in on_gpu else "cpu", place)
    return actors


def _endpoints(roles: Roles, network: EmulatedNetwork, stamps: Path) -> dict[str, dict[str, Endpoint]]:
    """For every role, where its connection to each neighbour is made; the one nearer to the root binds.

    The stamps of its messages pass through files in the folder `stamps`.
    """
    rank = {"gs": 0, "lps": 1, "worker": 2}
    endpoints: dict[str, dict[str, Endpoint]] = {role: {} for role in roles.all}
    port = FIRST_PORT
    for role in roles.all:
        for peer in roles.neighbours(role):
            if (rank[kind_of(role)], role) < (rank[kind_of(peer)], peer):
                address = f"tcp://{network.hosts[role].ip}:{port}"
                down, up = stamps / f"{port}-down", stamps / f"{port}-up"
                endpoints[role][peer] = Endpoint(address, True, sent=down, received=up)
                endpoints[peer][role] = Endpoint(address, False, sent=up, received=down)
                port += 1
    return endpoints


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
