"""One role as a Ray actor: its coroutines, its clock, and its connections."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Any, ParamSpec, SupportsFloat, TypeVar

import torch

from testbed.errors import NotFinite
from testbed.experiment.assembly import Assembly
from testbed.experiment.load import from_dict
from testbed.fabrics.actors.line import Endpoint
from testbed.fabrics.actors.silence import Doing
from testbed.fabrics.actors.wire import HostWire, Wire
from testbed.fabrics.base import probe_folder, state_path
from testbed.record.events import Event, Overrun
from testbed.record.recorder import Recorder
from testbed.roles import state as state_file
from testbed.roles.compute import compute_model
from testbed.roles.node import Charge, Node
from testbed.roles.trail import Parcel
from testbed.systems import System
from testbed.systems.protocols.lives import play_system

T = TypeVar("T")
P = ParamSpec("P")
OVERRUN_TOLERANCE_S = 2e-3  # timers and threads wake that late on a busy machine


@dataclass(frozen=True)
class Place:
    """Where a role stands: its host's namespace, its connections, and the run's dilation factor k."""

    role: str
    netns_pid: int
    endpoints: Mapping[str, Endpoint]
    dilation: float


class ActorNode(Node):
    """A role on the machine's own clock, divided by the dilation factor; what made it gives it its `wire`."""

    wire: Wire

    def __init__(self, role: str, experiment: Any, dilation: float = 1.0) -> None:
        super().__init__(role, experiment.roles, experiment.run.patience_s)
        self.recorder: Recorder | None = None
        self._device = compute_model(experiment.compute.device).device
        self._dilation = dilation
        self._start_s = 0.0  # this machine's monotonic clock when the run's clock stood at 0
        self._computing = False
        self._active_s = monotonic()  # when it last computed, or something came

    def set_clock(self, monotonic_s: float, clock_s: float) -> None:
        """The run's clock shows `clock_s` when this machine's monotonic clock shows `monotonic_s`."""
        self._start_s = monotonic_s - clock_s * self._dilation

    def now(self) -> float:
        return (monotonic() - self._start_s) / self._dilation

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(self.awake(seconds) * self._dilation)

    def arrived(self, peer: str, parcel: Parcel) -> None:
        self._active_s = monotonic()
        super().arrived(peer, parcel)

    @property
    def doing(self) -> Doing:
        """What this role is at."""
        still_s = self.awake(0.0)  # a fault may let it stand still, for a while or for ever
        goes_on = still_s < inf and (self._computing or still_s > 0)
        return Doing(monotonic() if goes_on else self._active_s, tuple(self.mailbox.awaited()))

    async def _transmit(self, peer: str, parcel: Parcel) -> None:
        await self.wire.send(peer, parcel)

    async def compute(self, work: Charge[T], fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # On the loop's own thread, so that nothing else of this role runs in between (rule 2); ZeroMQ's
        # thread keeps sending and receiving meanwhile.
        self._computing = True
        try:
            return await self._compute(work, fn, *args, **kwargs)
        finally:
            self._computing, self._active_s = False, monotonic()

    async def _compute(self, work: Charge[T], fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        began_s, now_s = monotonic(), self.now()
        result = fn(*args, **kwargs)
        took_s = monotonic() - began_s
        work = work(result) if callable(work) else work
        needed_s = took_s / self._dilation if self._device is None else self._device.seconds(work)
        spent_s = self.lasting(needed_s, now_s)
        self.ledger.charged(work, spent_s, now_s, fn)
        allowed_s = spent_s * self._dilation
        if took_s > allowed_s + OVERRUN_TOLERANCE_S:
            late = Overrun(time_s=self.now(), node=self.name, allowed_s=allowed_s, took_s=took_s)
            self.record(late)
        await asyncio.sleep(max(began_s + allowed_s - monotonic(), 0.0))
        return result

    def record(self, event: Event) -> None:
        if self.recorder is not None:
            self.recorder.record(event)

    def step_done(self, step: int, loss: SupportsFloat) -> None:
        super().step_done(step, loss)
        if not isfinite(float(loss)):
            raise NotFinite.of(f"training loss of step {step}")

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(self.awake(seconds) * self._dilation)

    def call_later(self, seconds: float, fn: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self.awake(seconds) * self._dilation, fn)


@lru_cache
def assembled(experiment: str, device: str = "cpu") -> Assembly:
    """The parts of an experiment, given as JSON; forks of a process that has asked for them have them, too."""
    return Assembly(from_dict(json.loads(experiment), "the experiment"), device)


def warm_up(experiment: str) -> None:
    """Do once what is slow at its first time: open data and model, load the codecs' kernels, make a gradient."""
    torch.set_num_threads(1)
    task = assembled(experiment).warm_up()[0].task
    task.learner(0).gradient(task.initial, 0)


class RoleActor:
    """The Ray actor, on a host of an emulated network; the system and seed it plays come and go.

    Connections and data set stay open meanwhile.
    """

    def __init__(self, experiment: dict[str, Any], device: str, place: Any) -> None:
        torch.set_num_threads(1)
        self._assembly = assembled(json.dumps(experiment), device)
        self._place = place
        self._node: ActorNode
        self._system: System
        self._state: Any
        self._probes: dict[int, tuple[float, Any]] = {}  # by step: when, and the state

    def ready(self) -> int:
        """The process's id, once it is up."""
        return os.getpid()

    async def connect(self) -> None:
        """Open the connections to all neighbours and warm them up; every role must be told so at once."""
        experiment, place = self._assembly.experiment, self._place
        schedule = experiment.schedule
        self._node = ActorNode(place.role, experiment, place.dilation)
        broken = [peer for peer in place.endpoints if schedule and (place.role, peer) in schedule.broken]
        self._node.wire = HostWire(place.netns_pid, place.endpoints, self._node, self._max_bytes, broken)
        await self._connected()

    @property
    def _max_bytes(self) -> int:
        """Of a frame."""
        return 2 * 4 * self._assembly.workload.layout.size + (1 << 21)

    async def _connected(self) -> None:
        experiment = self._assembly.experiment
        if (schedule := experiment.schedule) is not None:
            self._node.pace, self._node.mortal = schedule.pace_of(self._node.name), schedule.mortal
        await self._node.wire.start()

    async def begin(
        self, system: str, seed: int, checkpoint: str | None, records: str, probe_steps: int | None
    ) -> None:
        """Prepare the role's state for a system and seed, and join the records of that run."""
        name = self._node.name
        self._system = self._assembly.system(system, seed)
        self._node.join(self._system.task.roles)
        self._node.probe, self._node.probe_steps = None, probe_steps or 1
        if probe_steps is not None and name in self._system.shown_by:
            self._node.probe = self._take_probe
        self._probes.clear()
        self._state = self._system.initial_state(name)
        if checkpoint is not None:
            state_file.load(state_path(Path(checkpoint), name), self._state)
        if self._node.recorder is not None:
            self._node.recorder.close()
        self._node.recorder = self._recorder(records)
        if name in self._node.roles.workers:  # the first gradient compiles, allocates and opens the data
            learner = self._system.task.learner(self._node.roles.workers.index(name))
            learner.gradient(self._system.task.initial, 0)

    def _recorder(self, records: str) -> Recorder:
        """What takes this role's events."""
        return Recorder.join(Path(records))

    async def segment(self, stop_at: int, monotonic_s: float, clock_s: float) -> float:
        """Play the role until step `stop_at`; the run's clock shows `clock_s` at `monotonic_s`. Returns the clock."""
        self._node.set_clock(monotonic_s, clock_s)
        self._node.ledger.timeline_steps = 0 if clock_s else self._assembly.experiment.run.timeline_steps
        await asyncio.sleep(max(monotonic_s - monotonic(), 0.0))
        schedule = self._assembly.experiment.schedule
        deaths = schedule.deaths_of(self._node.name) if schedule else None
        await play_system(self._node, self._system, self._state, stop_at, deaths)
        return self._node.now()

    async def doing(self) -> Doing:
        """What the role is at while a segment plays."""
        return self._node.doing

    async def break_off(self, peer: str) -> None:
        """Close this end of the connection to `peer`, which is reset."""
        await self._node.wire.lasting(peer).break_off()

    async def connect_anew(self, peer: str) -> int:
        """Open the connection to `peer` again, once both ends have broken off; how many messages are sent again."""
        return await self._node.wire.lasting(peer).connect_anew()

    async def save(self, folder: str) -> dict[int, float]:
        """Write the role's state, and those it has handed in as probes since the last time: when, by their step."""
        role = self._node.name
        state_file.save(state_path(Path(folder), role), self._state)
        times_s = {}
        for step, (time_s, state) in self._probes.items():
            path = state_path(probe_folder(Path(folder), step), role)
            path.parent.mkdir(parents=True, exist_ok=True)
            state_file.save(path, state)
            times_s[step] = time_s
        self._probes.clear()
        return times_s

    def _take_probe(self, role: str, step: int, time_s: float, state: Any) -> None:
        self._probes[step] = (time_s, state)
