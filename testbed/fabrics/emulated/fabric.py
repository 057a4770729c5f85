"""Plays runs on a Mininet network with Ray actors; runs inside a sandbox (`emulation.sandbox`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from testbed.emulation import sandbox
from testbed.emulation.network import EmulatedNetwork
from testbed.emulation.trace_player import Lateness, TracePlayer
from testbed.experiment.assembly import Assembly
from testbed.fabrics.actors.actor import Place, RoleActor
from testbed.fabrics.actors.fabric import ActorFabric
from testbed.fabrics.actors.forkserver import ForkServer
from testbed.fabrics.actors.line import Endpoint
from testbed.fabrics.actors.own_ray import OwnRay
from testbed.fabrics.actors.resets import Resets
from testbed.fabrics.emulated.dilation import choose_dilation
from testbed.fabrics.registry import Gate
from testbed.record.events import LONGEST_INTERVAL_S, LinkBytes
from testbed.roles.roles import Roles, first_of
from testbed.wan.trace import Change
from testbed.workloads.devices import alone, share

FIRST_PORT = 5500


class EmulatedFabric(ActorFabric):
    """The emulated fabric.

    Parameters
    ----------
    assembly : the experiment's parts, for this process
    device : where the actors' math runs
    gate : is given the network before any role starts, raises NetworkError if it is not what the profile says, and
        returns what it found; None for no gate
    """

    def __init__(self, assembly: Assembly, device: str, gate: Gate | None) -> None:
        super().__init__(assembly, device)
        self.dilation = choose_dilation(assembly)
        self._held = ExitStack()
        self._schedule, self._lateness = self._experiment.schedule, Lateness()
        self._network: EmulatedNetwork | None = None
        try:
            scratch = self._held.enter_context(sandbox.scratch())  # Ray's sockets and logs, and the messages' stamps
            self._stamps = scratch / "stamps"
            self._stamps.mkdir()
            forks = ForkServer(scratch, self._experiment.as_dict())
            self._held.callback(forks.close)
            self._network = network = EmulatedNetwork(self._experiment.network_plan, self.dilation)
            assembly.warm_up()
            forks.wait()  # what it does is not to disturb what the gate measures
            self._gate_report = gate(network) if gate is not None else {"skipped": True}
            self._engine = OwnRay(scratch, forks, alone(self._device))
            self._start_roles()
        except BaseException:
            self.close()
            raise

    def _start_actors(self) -> dict[str, Any]:
        """Each on its host; on GPUs each worker has its part of one, dealt out by Ray: the only one that it sees."""
        assert self._network is not None
        endpoints, hosts = _endpoints(self._roles, self._network, self._stamps), self._network.hosts
        on_gpu = self._roles.workers if self._device.startswith("cuda") else ()
        data = self._experiment.as_dict()
        actor_class: Any = ray.remote(RoleActor)  # Ray's types do not know what options() returns
        actors: dict[str, Any] = {}
        for role in self._roles.all:
            part = share(len(on_gpu), int(ray.cluster_resources().get("GPU", 1))) if role in on_gpu else 0
            kind = actor_class.options(num_cpus=0, num_gpus=part, max_concurrency=8, max_restarts=0)
            place = Place(role, hosts[role].netns_pid, endpoints[role], self.dilation)
            actors[role] = kind.remote(data, "cuda" if role in on_gpu else "cpu", place)
        return actors

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
        self._changed_s = clock_s if clock_s > 0 else -1.0  # a change at 0 is the first segment's to record
        self._undo_changes()
        super().begin(system, seed, records, clock_s, checkpoint)

    def _meter(self, start_s: float) -> _Meter:
        return _Meter(self, start_s, self._clock_s)

    @contextmanager
    def _changing(self, start_s: float) -> Iterator[None]:
        """Let the WAN follow the experiment's schedule, if it has one, from `start_s` on the monotonic clock."""
        if self._schedule is None:
            yield
            return
        at_s = self._clock_s

        def now_s() -> float:
            return at_s + (monotonic() - start_s) / self.dilation

        with Resets(self._playing, now_s, self.record) as resets:
            player = TracePlayer(
                self._schedule, self._change, self._changed_s, at_s, start_s, self.dilation, resets.begin
            )
            try:
                yield
            finally:
                made = player.stop()
                self._changed_s = player.done_s
                for change in made:
                    self.record(change)
                    self._lateness.add(change)

    def _check_network(self) -> None:
        assert self._network is not None
        self._network.check()

    def _undo_changes(self) -> None:
        """Put back what the run before has left changed."""
        for pair in self._schedule.pairs if self._schedule else ():
            link = self._experiment.plan.wan.get(pair)
            if link is not None:
                self._change(Change(0.0, *pair, link.goodput_mbit, link.rtt_ms))
            self._change(Change(0.0, *pair, 0.0, cut=False))

    def _change(self, change: Change) -> None:
        assert self._network is not None
        self._network.change(change)

    def close(self) -> None:
        super().close()
        if self._network is not None:
            self._network.close()
            self._network = None
        self._held.close()

    def sent_bytes(self) -> dict[str, int]:
        """Bytes that have left on each link since the network was built."""
        assert self._network is not None
        return {name: counter.wire_bytes for name, counter in self._network.counters().items()}


class _Meter:
    """Records the links' bytes once an interval of the run's clock while a segment plays, until its trace ends."""

    def __init__(self, fabric: EmulatedFabric, start_s: float, clock_s: float) -> None:
        self._fabric = fabric
        schedule = fabric._schedule
        self.end_s = math.inf if schedule is None or schedule.end_s is None else schedule.end_s
        self._start_s = start_s
        self._first_s = self._since_s = clock_s
        self._interval_s = min(fabric._experiment.run.link_interval_s, LONGEST_INTERVAL_S)
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

    def watch(self) -> None:
        assert self._fabric._network is not None
        self._fabric._network.watch()

    def close(self, clock_s: float) -> None:
        """Record what is left; a sample may have been due after the segment was over, at `clock_s`, and before now."""
        self._sample(clock_s if clock_s > self._since_s else self.now_s)

    def _sample(self, clock_s: float) -> None:
        totals = self._fabric.sent_bytes()
        crossed = {link: n for link, total in totals.items() if (n := total - self._before[link])}
        if crossed:
            interval_s = clock_s - self._since_s
            self._fabric.record(LinkBytes(time_s=clock_s, interval_s=interval_s, wire_bytes=crossed))
        self._before, self._since_s = totals, clock_s


def _endpoints(roles: Roles, network: EmulatedNetwork, stamps: Path) -> dict[str, dict[str, Endpoint]]:
    """For every role, where its connection to each neighbour is made; the one nearer to the root binds.

    The stamps of its messages pass through files in the folder `stamps`.
    """
    endpoints: dict[str, dict[str, Endpoint]] = {role: {} for role in roles.all}
    port = FIRST_PORT
    for role in roles.all:
        for peer in roles.neighbours(role):
            if first_of(role, peer) == role:
                address = f"tcp://{network.hosts[role].ip}:{port}"
                down, up = stamps / f"{port}-down", stamps / f"{port}-up"
                endpoints[role][peer] = Endpoint(address, True, sent=down, received=up)
                endpoints[peer][role] = Endpoint(address, False, sent=up, received=down)
                port += 1
    return endpoints
