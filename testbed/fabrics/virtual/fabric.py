"""All roles of a run in one process, on one event loop, under a virtual clock."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import floor, inf
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from testbed.errors import NotFinite, RoleDied, RunError, TestbedError
from testbed.fabrics.base import EndedEarly, Fabric, ProbedEnough, Record, state_path
from testbed.fabrics.virtual.clock import VirtualLoop, shut
from testbed.fabrics.virtual.flows import Connection
from testbed.fabrics.virtual.folds import Members, ToFold, across, folds_of, from_fold, of_each
from testbed.fabrics.virtual.network import Network
from testbed.fabrics.virtual.putoff import PutOff
from testbed.fabrics.virtual.replay import Replay
from testbed.faults import Schedule
from testbed.gpu.moves import finish
from testbed.record.events import LONGEST_INTERVAL_S, LONGEST_RUN_S, Event, LinkBytes, StepDone
from testbed.roles import state as state_file
from testbed.roles.compute import ComputeModel
from testbed.roles.node import Charge, Node
from testbed.roles.roles import Roles
from testbed.roles.trail import Parcel
from testbed.systems import System
from testbed.systems.protocols.lives import play_system
from testbed.wan.plan import NetworkPlan
from testbed.wan.tcp import Tcp
from testbed.workloads.launches import Launches

T = TypeVar("T")
P = ParamSpec("P")
LONG_S = 1e6  # who does not even compute this in any time stands still for ever
FEW_HOSTS = 64  # the LAN links of so many are recorded as often as the WAN's


class VirtualNode(Node):
    """A role on the virtual clock. Waits need no bound: the loop notices when nobody can ever answer."""

    def __init__(
        self, name: str, roles: Roles, compute: ComputeModel, network: Network, loop: VirtualLoop, record: Record
    ) -> None:
        super().__init__(name, roles, patience_s=None)
        self.connections: dict[str, Connection] = {}
        self.folds: dict[str, ToFold] = {}  # of those peers that are in one
        self.put_off: PutOff | None = None  # what a device does, before time passes
        self._device = compute.device
        self._network = network
        self._loop = loop
        self._record = record

    def now(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(self.awake(seconds))

    async def _transmit(self, peer: str, parcel: Parcel) -> None:
        connection = self.connections[peer]
        if (fold := self.folds.get(peer)) is None or fold.complete(peer, parcel):
            await self._network.send(connection, parcel, parcel[0].nbytes)

    async def compute(self, work: Charge[T], fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        began_s = perf_counter()
        asked = self.put_off.ask(fn, args) if self.put_off is not None and not kwargs else None
        result = fn(*args, **kwargs) if asked is None else asked.sized
        work = work(result) if callable(work) else work
        if self._device is None:
            finish(result)
        spent_s = perf_counter() - began_s if self._device is None else self._device.seconds(work)
        spent_s = self.lasting(spent_s, self.now())
        if self.put_off is not None:
            self.put_off.needed(self.now() + spent_s, asked)
            if not spent_s:
                self.put_off.run()
        self.ledger.charged(work, spent_s, self.now(), fn)
        await asyncio.sleep(spent_s)
        return result if asked is None else asked.result

    def record(self, event: Event) -> None:
        self._record(event)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(self.awake(seconds))

    def call_later(self, seconds: float, fn: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(self.awake(seconds), fn)


class VirtualFabric(Fabric):
    """Plays runs on a virtual clock.

    Parameters
    ----------
    plan : the network and who stands in it
    compute : what a computation is charged
    make_system : builds a system by name and seed
    link_interval_s : bytes per link are recorded this often; in LANs of more than `FEW_HOSTS` hosts less often
    schedule : what changes over the run
    tcp : what TCP costs; None for nothing
    patience_s : bound of a wait in which nothing happens but what the schedule has; and where a link is cut, or a role
        dead or standing still, of one in which no worker does a step, whatever timers there are
    timeline_steps : of so many steps each computation and message is recorded, unless there are more than `FEW_HOSTS`
    launches : where gradients are computed on a device: all that are asked for before one of them is needed together
    """

    def __init__(
        self,
        plan: NetworkPlan,
        compute: ComputeModel,
        make_system: Callable[[str, int], System],
        link_interval_s: float = 1.0,
        schedule: Schedule | None = None,
        tcp: Tcp | None = None,
        patience_s: float = inf,
        timeline_steps: int = 0,
        launches: Launches | None = None,
    ) -> None:
        self.record = self.observe = lambda event: None
        self.messages = 0  # sent in all segments so far
        self._plan, self._compute = plan, compute
        self._make_system = make_system
        self._link_interval_s = link_interval_s
        self._schedule = schedule or Schedule(None)
        self._tcp, self._patience_s = tcp, patience_s
        self._timeline_steps = timeline_steps if len(plan.hosts) <= FEW_HOSTS else 0
        self._system: System
        self._states: dict[str, Any] = {}
        self._clock_s = 0.0
        self._told_to_stop = False
        self._stepped_s = 0.0  # when a worker did its last step
        self._put_off = None if launches is None else PutOff(launches)
        if launches is not None:
            launches.together = compute.device is not None  # else each is measured by itself

    def begin(self, system: str, seed: int, records: Path, clock_s: float, checkpoint: Path | None) -> None:
        if self._put_off is not None:
            self._put_off.forget()
        self._system = self._make_system(system, seed)
        roles = self._system.task.roles
        played_for = {member for members in self._folds() for member in members[1:]}
        self._states = {name: self._system.initial_state(name) for name in roles.all if name not in played_for}
        if checkpoint is not None:
            for name, state in self._states.items():
                state_file.load(state_path(checkpoint, name), state)
        if self._compute.device is not None and not self._schedule.tells_roles_apart:
            self._system.unite(self._states)
        self._clock_s = clock_s

    def segment(self, stop_at: int) -> float:
        self._told_to_stop = self._probed_enough = False
        if not _loop_runs_here():
            return self._segment(stop_at)
        with ThreadPoolExecutor(1) as pool:  # a thread has one loop, and a notebook's is running in this one
            playing = pool.submit(self._segment, stop_at)
            try:
                return playing.result()
            except KeyboardInterrupt:
                self._told_to_stop = True
                raise

    def _segment(self, stop_at: int) -> float:
        nodes: dict[str, VirtualNode] = {}

        def before_jump(when_s: float) -> float:
            if self._told_to_stop:
                raise KeyboardInterrupt
            if self._probed_enough:
                raise ProbedEnough(loop.time())
            if self._put_off is not None and when_s >= self._put_off.due_s:
                self._put_off.run()
            when_s = min(when_s, replay.next_s)
            if when_s >= LONGEST_RUN_S:
                at = f"after {loop.time():.6g} s nothing would happen before {when_s:.6g} s"
                raise RunError(f"{at}, and no run lasts {LONGEST_RUN_S:g} s: ask for faster links, or for fewer steps")
            if when_s - self._stepped_s > self._patience_s and (gone := _who_is_gone(nodes, network)):
                since = f"no step for {when_s - self._stepped_s:.0f} s"
                raise RunError(f"the run is stuck: {'; '.join([since, *gone, *_who_waits_for(nodes)])}")
            for meter in meters:
                if when_s >= meter.next_s:
                    meter.sample_until(when_s)
            replay.pass_until(when_s)
            return when_s

        def when_stuck() -> float:
            """Where all wait for a link that is cut: when the schedule changes something, but not for ever."""
            stalled = network.outages.stalled
            patient = stalled and replay.next_s - min(stall.since_s for stall in stalled.values()) <= self._patience_s
            return replay.next_s if patient else inf

        def noted(event: Event) -> None:
            if isinstance(event, StepDone):
                self._stepped_s = event.time_s
            self.record(event)

        self._stepped_s = self._clock_s
        loop = VirtualLoop(self._clock_s, lambda: _who_waits(nodes, network), before_jump, when_stuck)
        folds = {members[0]: members for members in self._folds()}
        network = Network(self._plan, loop, self._tcp, folds.values(), self._patience_s)
        meters = self._meters(network)
        replay = Replay(self._schedule, network, self._clock_s, lambda event: self.record(event))
        for name in self._states:
            record: Record = noted
            if name in folds:
                record = of_each(folds[name], record)
            nodes[name] = VirtualNode(name, self._system.task.roles, self._compute, network, loop, record)
            nodes[name].ledger.timeline_steps = 0 if self._clock_s else self._timeline_steps
            nodes[name].put_off = self._put_off
            nodes[name].pace, nodes[name].mortal = self._schedule.pace_of(name), self._schedule.mortal
        self._let_probe(nodes)
        for node in nodes.values():
            self._connect(node, nodes, network, folds)
        try:
            loop.run_until_complete(self._play(nodes, stop_at))
            if self._put_off is not None:
                self._put_off.run()  # what one who is gone had asked for
            self._clock_s = loop.time()
            self._close(meters, self._clock_s)
        except EndedEarly as end:
            for node in nodes.values():
                node.ledger.record_sent()
            self._close(meters, end.clock_s)
            raise
        finally:
            self.messages += network.messages
            shut(loop)
        return self._clock_s

    def _folds(self) -> Collection[Members]:
        """The workers for whom one plays: none where a fault may tell them apart."""
        return [] if self._schedule.tells_roles_apart else folds_of(self._system)

    def _meters(self, network: Network) -> list[_LinkMeter]:
        """All links every interval; of many hosts the LANs' less often, or that would be most of all work."""
        since_s, record = self._clock_s, lambda event: self.record(event)
        interval_s = min(self._link_interval_s, LONGEST_INTERVAL_S)
        if len(self._plan.hosts) <= FEW_HOSTS:
            return [_LinkMeter(network, list(network.links), interval_s, since_s, record)]
        wan = [name for name in network.links if "/" not in name]
        lan = [name for name in network.links if "/" in name]
        seldom_s = min(interval_s * len(self._plan.hosts) / FEW_HOSTS, LONGEST_INTERVAL_S)
        return [
            _LinkMeter(network, wan, interval_s, since_s, record),
            _LinkMeter(network, lan, seldom_s, since_s, record),
        ]

    def _close(self, meters: Sequence[_LinkMeter], end_s: float) -> None:
        for meter in meters:
            meter.close(end_s)

    def _connect(
        self, node: VirtualNode, nodes: Mapping[str, VirtualNode], network: Network, folds: Mapping[str, Members]
    ) -> None:
        """Open the connections from `node`: to each neighbour, or one to all of a fold."""
        own = folds.get(node.name, ())
        for peer in node.neighbours:
            if peer in nodes:
                arrived = nodes[peer].arrived
                from_all = own and peer not in folds
                deliver = from_fold(own, arrived) if from_all else partial(arrived, node.name)
                node.connections[peer] = network.connect(node.name, peer, deliver)
            elif peer in own:
                deliver = partial(node.arrived, across(own, peer))
                node.connections[peer] = network.connect(node.name, node.name, deliver)
        if own:
            return
        for leader, members in folds.items():
            if leader in node.connections:
                node.connections |= dict.fromkeys(members, node.connections[leader])
                node.folds |= dict.fromkeys(members, ToFold(members))

    def _let_probe(self, nodes: Mapping[str, Node]) -> None:
        """Have the roles that show the model hand in their states; what all have handed in is shown at once."""
        if (probe := self.probe) is None:
            return
        shown_by = self._system.shown_by
        waiting: dict[int, dict[str, Any]] = {}

        def take(role: str, step: int, time_s: float, state: Any) -> None:
            states = waiting.setdefault(step, {})
            states[role] = state
            if len(states) == len(shown_by):
                self._probed_enough = probe(step, time_s, waiting.pop(step))

        for name in shown_by:
            nodes[name].probe, nodes[name].probe_steps = take, self.probe_steps

    async def _play(self, nodes: Mapping[str, VirtualNode], stop_at: int) -> None:
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._live(node, stop_at)): name for name, node in nodes.items()}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if (error := task.exception()) is not None:
                raise died(tasks[task], error) from error

    async def _live(self, node: VirtualNode, stop_at: int) -> None:
        deaths = self._schedule.deaths_of(node.name)
        await play_system(node, self._system, self._states[node.name], stop_at, deaths)

    def save(self, folder: Path) -> None:
        for name, state in self._states.items():
            state_file.save(state_path(folder, name), state)

    def states(self, folder: Path) -> Mapping[str, Any]:
        return self._states


def _loop_runs_here() -> bool:
    """Whether this thread is inside an event loop, as a cell of a notebook is."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def died(role: str, error: BaseException) -> RunError:
    """The error a run ends with when `role` failed: one line, the traceback as a note for the log."""
    line = str(error) if isinstance(error, TestbedError) else " ".join(f"{type(error).__name__}: {error}".split())
    failure = RoleDied(f"{role} failed: {line}", diverged=isinstance(error, NotFinite))
    failure.add_note("".join(traceback.format_exception(error)))
    return failure


class _LinkMeter:
    """Records what crossed each of some links, interval by interval, as the clock passes each interval's end."""

    def __init__(
        self, network: Network, links: Collection[str], interval_s: float, start_s: float, record: Record
    ) -> None:
        self._network, self._links = network, links
        self._interval_s = interval_s
        self._since_s = start_s
        self._number = floor(start_s / interval_s) + 1  # of the interval that goes on
        self._record = record
        self._before: dict[str, int] = {}

    @property
    def next_s(self) -> float:
        return self._number * self._interval_s

    def sample_until(self, when_s: float) -> None:
        while self.next_s <= when_s:
            self._sample(self.next_s)
            self._number += 1

    def close(self, end_s: float) -> None:
        if end_s > self._since_s:
            self._sample(end_s)

    def _sample(self, end_s: float) -> None:
        totals = self._network.wire_bytes(end_s, self._links)
        crossed = {link: n for link, total in totals.items() if (n := total - self._before.get(link, 0))}
        if crossed:
            self._record(LinkBytes(time_s=end_s, interval_s=end_s - self._since_s, wire_bytes=crossed))
        self._before = totals
        self._since_s = end_s


def _who_waits(nodes: Mapping[str, VirtualNode], network: Network) -> str:
    return "; ".join(_who_is_gone(nodes, network) + _who_waits_for(nodes)) or "nothing is scheduled"


def _who_is_gone(nodes: Mapping[str, VirtualNode], network: Network) -> list[str]:
    gone = [f"{link} is cut" for link in network.outages.links()]
    gone += [f"{name} is dead" for name, node in nodes.items() if node.fate is not None and node.fate.dead]
    return gone + [f"{name} stands still" for name, node in nodes.items() if node.lasting(LONG_S, node.now()) == inf]


def _who_waits_for(nodes: Mapping[str, VirtualNode]) -> list[str]:
    return [f"{name} for {', '.join(awaited)}" for name, node in nodes.items() if (awaited := node.mailbox.awaited())]
