"""One role as a Ray actor on a node that shares nothing with the others: what it records and keeps goes home by Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import ray
import torch

from testbed.fabrics.actors.actor import ActorNode, RoleActor
from testbed.fabrics.base import state_path
from testbed.fabrics.cluster.doors import Doors, Sign
from testbed.fabrics.cluster.wire import Difference, NodeWire
from testbed.record import lines
from testbed.record.events import Event
from testbed.record.recorder import Recorder
from testbed.roles.roles import first_of
from testbed.roles.trail import Parcel

START_TRIES = 10


@dataclass(frozen=True)
class Stand:
    """Where a role stands: its node's id and address; `elsewhere` are the neighbours that are on other nodes."""

    role: str
    node_id: str
    address: str
    elsewhere: tuple[str, ...]


@dataclass(frozen=True)
class News:
    """What a role has to tell while it plays: lines of events, and the bytes sent to each peer since it was started."""

    lines: bytes
    sent_bytes: Mapping[str, int]


@dataclass(frozen=True)
class Kept:
    """A role's files of a checkpoint by their names in it, and when it had made the steps of its probes."""

    files: Mapping[str, bytes]
    times_s: Mapping[int, float]


class Notes(Recorder):
    """Takes events in the place of a file, until they are asked for."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def record(self, event: Event) -> None:
        self._lines.append(lines.encode(event))

    def close(self) -> None:
        """There is nothing to close."""

    def take(self) -> bytes:
        """The lines since the last time."""
        taken, self._lines = b"".join(self._lines), []
        return taken


class DistantNode(ActorNode):
    """A role whose peers' clocks are known but for a little: nothing comes before it was sent."""

    def arrived(self, peer: str, parcel: Parcel) -> None:
        message, (sent_s, hops) = parcel
        super().arrived(peer, (message, (min(sent_s, self.now()), hops)))


class DistantRoleActor(RoleActor):
    """The actor. All roles `listen`, then `admit`, then `meet`, each when all have done the one before."""

    def __init__(self, experiment: dict[str, Any], device: str, place: Stand) -> None:
        super().__init__(experiment, device, place)
        torch.set_num_threads(self._assembly.experiment.cluster.threads)
        self._node = DistantNode(place.role, self._assembly.experiment)
        self._notes = Notes()
        self._folder = TemporaryDirectory(prefix="testbed-")

    @ray.method(max_task_retries=START_TRIES)
    def ready(self) -> int:  # type: ignore[override]
        """As the other's; asked again where the way to a new process is not there yet."""
        return super().ready()

    async def listen(self) -> Sign:
        """Open a socket for each neighbour that is to connect."""
        asked, place = self._assembly.experiment.cluster, self._place
        self._doors = Doors(place.address, asked.encrypt, asked.port_range, self._max_bytes)
        for peer in self._node.neighbours:
            if first_of(place.role, peer) == place.role:
                self._doors.listen(peer)
        return self._doors.sign

    async def admit(self, signs: Mapping[str, Sign]) -> None:
        """Let those neighbours in."""
        for peer in self._doors.sockets:
            self._doors.admit(peer, signs[peer].key)

    async def meet(self, signs: Mapping[str, Sign]) -> None:
        """Connect to the other neighbours, and warm all connections up."""
        name = self._place.role
        for peer in self._node.neighbours:
            if peer not in self._doors.sockets:
                self._doors.dial(peer, signs[peer].addresses[name], signs[peer].key)
        self._node.wire = self._wire = NodeWire(self._doors, self._node)
        await self._connected()

    async def clock(self) -> float:
        """What the monotonic clock of this machine shows."""
        return monotonic()

    async def differences(self) -> dict[str, Difference]:
        """How the clocks of other machines differ from this one's, by the neighbours there that this role asks."""
        asked = [peer for peer in self._place.elsewhere if peer in self._doors.dialed]
        return {peer: await self._wire.difference(peer) for peer in asked}

    async def prepare(self, system: str, seed: int, probe_steps: int | None, kept: bytes | None) -> None:
        """As `begin`; `kept` is the file of this role's state in a checkpoint."""
        folder = Path(self._folder.name)
        if kept is not None:
            state_path(folder, self._place.role).write_bytes(kept)
        self._notes = Notes()
        await self.begin(system, seed, None if kept is None else str(folder), "", probe_steps)

    def _recorder(self, records: str) -> Recorder:
        return self._notes

    async def play(self, stop_at: int, starts_s: Mapping[str, float], clock_s: float) -> float:
        """As `segment`; `starts_s` is by node when it begins, on the node's own clock."""
        return await self.segment(stop_at, starts_s[self._place.node_id], clock_s)

    async def news(self) -> News:
        """What there is to tell since the last time."""
        return News(self._notes.take(), dict(self._wire.sent_bytes))

    async def keep(self) -> Kept:
        """The role's state, and those it has handed in as probes since the last time."""
        with TemporaryDirectory(dir=self._folder.name) as folder:
            times_s = await self.save(folder)
            files = {
                str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
            }
        return Kept(files, times_s)


def look(pids: Mapping[str, int]) -> dict[str, tuple[float, str]]:
    """Of processes of this machine how long they have worked, and what ails them. A Ray task."""
    from testbed.emulation import processes

    return {role: (processes.worked_s(pid), processes.ailment(pid)) for role, pid in pids.items()}
