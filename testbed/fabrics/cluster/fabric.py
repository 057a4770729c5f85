"""Plays the roles of a run on the nodes of a Ray cluster that this process has joined."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from testbed.emulation.trace_player import TracePlayer
from testbed.errors import InputError
from testbed.experiment.assembly import Assembly
from testbed.fabrics.actors.fabric import ActorFabric, answer_of
from testbed.fabrics.base import state_path
from testbed.fabrics.cluster import clocks, placement
from testbed.fabrics.cluster.actor import DistantRoleActor, Kept, News, Stand
from testbed.fabrics.cluster.links import Survey, on
from testbed.fabrics.cluster.nodes import Nodes
from testbed.fabrics.cluster.placement import Spot
from testbed.fabrics.cluster.wire import ROUNDS, Difference, difference
from testbed.fabrics.registry import Renamed
from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.events import LONGEST_INTERVAL_S, LinkBytes
from testbed.record.recorder import Recorder
from testbed.wan.plan import region_of
from testbed.wan.profile import Profile

TELL_S = 1.0  # between two questions for what roles have recorded


class ClusterFabric(ActorFabric):
    """The cluster fabric.

    Parameters
    ----------
    assembly : the experiment's parts, for this process
    device : where the workers' math runs, on each node
    renamed : what an experiment is on the nodes
    probed : whether what joins the nodes is measured before any role starts
    """

    lead_s = 1.0  # calls go as far as messages do

    def __init__(self, assembly: Assembly, device: str, renamed: Renamed, probed: bool) -> None:
        super().__init__(assembly, device)
        data, regions = self._experiment.as_dict(), self._experiment.plan.regions
        self._there = renamed(data)
        asked, self._profile = self._experiment.cluster, None
        found = placement.spots(ray.nodes(), asked.nodes, regions)
        with Survey(asked, found) as survey:
            able = survey.fit(data, self._there, regions, print)
            began_s = monotonic()
            if probed:
                self._profile = survey.profile(self._experiment, able, regions)
            self._took_s = monotonic() - began_s
        self._spots = placement.dealt(self._roles, able)
        self._engine = Nodes(self._spots)
        self._clocks: dict[str, Difference] = {}
        try:
            self._start_roles()
        except BaseException:
            self.close()
            raise

    def _start_actors(self) -> dict[str, Any]:
        kind: Any = ray.remote(DistantRoleActor)
        cuda = self._device.startswith("cuda")
        on_gpu = Counter(self._spots[role] for role in self._roles.workers if cuda)
        actors: dict[str, Any] = {}
        for role, spot in self._spots.items():
            share, device = 0.0, "cpu"
            if cuda and role in self._roles.workers:
                if not spot.gpus:
                    raise InputError(
                        f"node {spot.address}: no GPU for {role}; leave --device cuda out, or label others"
                    )
                share, device = min(1.0, spot.gpus / on_gpu[spot]), self._device
            options = kind.options(
                num_cpus=0, num_gpus=share, max_concurrency=8, max_restarts=0, scheduling_strategy=on(spot)
            )
            actors[role] = options.remote(self._there, device, self._stand(role, spot))
        return actors

    def _stand(self, role: str, spot: Spot) -> Stand:
        elsewhere = tuple(peer for peer in self._roles.neighbours(role) if self._spots[peer].node_id != spot.node_id)
        return Stand(role, spot.node_id, spot.address, elsewhere)

    def _join_actors(self) -> None:
        self._sent_bytes: dict[str, Mapping[str, int]] = {}  # by role and peer, as last told
        signs = self._all("listen", within_s=self._starting_s)
        self._all("admit", signs)
        self._all("meet", signs, within_s=self._starting_s)

    def _prepare(self, system: str, seed: int, checkpoint: Path | None, records: Path, steps: int | None) -> None:
        kept = {role: (state_path(checkpoint, role).read_bytes() if checkpoint else None,) for role in self._playing}
        self._records = Recorder.join(records)
        self._all("prepare", system, seed, steps, within_s=self._starting_s, own=kept)

    def _saved(self, folder: Path) -> Iterable[Mapping[int, float]]:
        answers: dict[str, Kept] = self._all("keep")
        for kept in answers.values():
            for name, content in kept.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return [kept.times_s for kept in answers.values()]

    def segment(self, stop_at: int) -> float:
        with self._finding_cause():
            self._set_clocks()
        return super().segment(stop_at)

    def _set_clocks(self) -> None:
        """Find out how the nodes' clocks differ from this process's: nothing is on its way at this moment."""
        playing, self._playing = self._playing, self._actors
        try:
            found: dict[str, dict[str, Difference]] = self._all("differences")
        finally:
            self._playing = playing
        nodes = {role: spot.node_id for role, spot in self._spots.items()}
        edges = [(nodes[role], nodes[peer], each) for role, of_role in found.items() for peer, each in of_role.items()]
        first = next(iter(self._actors))
        self._clocks = clocks.against(nodes[first], nodes.values(), edges)
        self._first_ahead_s = _asked_clock(first, self._actors[first])

    def _started(self, stop_at: int, start_s: float) -> dict[Any, str]:
        starts_s = {node: start_s + self._first_ahead_s.ahead_s + clock.ahead_s for node, clock in self._clocks.items()}
        return {actor.play.remote(stop_at, starts_s, self._clock_s): role for role, actor in self._playing.items()}

    def _meter(self, start_s: float) -> Meter:
        return Meter(self, start_s, self._clock_s)

    @contextmanager
    def _changing(self, start_s: float) -> Iterator[None]:
        """Record what faults of roles, which act by themselves, begin and are over."""
        schedule = self._experiment.schedule
        if schedule is None:
            yield
            return
        done_s = self._clock_s if self._clock_s > 0 else -1.0
        # No connection is reset: such a fault is refused before.
        player = TracePlayer(schedule, _nothing, done_s, self._clock_s, start_s, 1.0, _nothing)
        try:
            yield
        finally:
            for made in player.stop():
                self.record(made)

    def _check_network(self) -> None:
        """It is what it is."""

    def measured(self) -> Profile | None:
        return self._profile

    def describe(self) -> dict[str, Any]:
        if self._profile is None:
            return {"delay_mechanism": "", "gate": {"skipped": True}}
        figures = []
        for (a, b), link in self._profile.pairs.items():
            figures.append({"section": "goodput", "name": f"{a}>{b}", "unit": "Mbit/s", "measured": link.goodput_mbit})
            figures.append({"section": "round trip", "name": f"{a}>{b}", "unit": "ms", "measured": link.rtt_ms})
        found = [{**figure, "asked": None, "bound": "", "ok": True} for figure in figures]
        return {"delay_mechanism": "", "gate": {"took_s": round(self._took_s, 3), "figures": found}}

    def nodes(self) -> dict[str, Any]:
        encrypted = self._experiment.cluster.encrypt
        return {
            "roles": {role: spot.address for role, spot in self._spots.items()},
            "encrypted": encrypted,
            "clocks": {
                spot.address: {
                    "ahead_ms": round(1e3 * self._clocks[spot.node_id].ahead_s, 3),
                    "error_ms": round(1e3 * self._clocks[spot.node_id].error_s, 3),
                }
                for spot in self._spots.values()
                if spot.node_id in self._clocks
            },
        }


class Meter:
    """Brings home what roles record while a segment plays, and records the links' bytes as the messages count them."""

    end_s = math.inf

    def __init__(self, fabric: ClusterFabric, start_s: float, clock_s: float) -> None:
        self._fabric, self._start_s = fabric, start_s
        self._first_s = self._since_s = clock_s
        self._interval_s = min(fabric._experiment.run.link_interval_s, LONGEST_INTERVAL_S)
        self._next_s = (math.floor(clock_s / self._interval_s) + 1) * self._interval_s
        self._told_s = monotonic()
        self._asked: dict[Any, str] = {}
        self._payload: Counter[str] = Counter()  # by link, of this segment
        self._recorded: Counter[str] = Counter()  # bytes on the wire

    @property
    def now_s(self) -> float:
        """What the run's clock shows."""
        return self._first_s + monotonic() - self._start_s

    def until_next_s(self) -> float:
        """Real seconds until something is to be done."""
        return max(min(self._next_s - self.now_s, self._told_s + TELL_S - monotonic()), 0.0)

    def sample_when_due(self) -> None:
        if self._asked:
            done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
            for each in done:
                role = self._asked.pop(each)
                self._take(role, answer_of(role, each))
        if monotonic() - self._told_s >= TELL_S:
            self._told_s = monotonic()
            busy = set(self._asked.values())
            self._asked |= {
                actor.news.remote(): role for role, actor in self._fabric._playing.items() if role not in busy
            }
        if self.now_s >= self._next_s:
            self._sample(self.now_s)
            self._next_s = (math.floor(self.now_s / self._interval_s) + 1) * self._interval_s

    def watch(self) -> None:
        """The roles do: a connection that breaks ends a wait."""

    def close(self, clock_s: float) -> None:
        for each, role in self._asked.items():
            self._take(role, answer_of(role, each))
        self._asked = {}
        for role, news in self._fabric._all("news").items():
            self._take(role, news)
        self._sample(clock_s)

    def _take(self, role: str, news: News) -> None:
        self._fabric._records.append(news.lines)
        before, self._fabric._sent_bytes[role] = self._fabric._sent_bytes.get(role, {}), news.sent_bytes
        for peer, nbytes in news.sent_bytes.items():
            for link in links_between(role, peer):
                self._payload[link] += nbytes - before.get(peer, 0)

    def _sample(self, clock_s: float) -> None:
        totals = {link: round(payload / PAYLOAD_PER_WIRE) for link, payload in self._payload.items()}
        crossed = {link: n for link, total in totals.items() if (n := total - self._recorded[link])}
        if crossed:
            interval_s = max(clock_s - self._since_s, 0.0)
            self._fabric.record(LinkBytes(time_s=clock_s, interval_s=interval_s, wire_bytes=crossed))
        self._recorded = Counter(totals)
        self._since_s = clock_s


def links_between(role: str, peer: str) -> list[str]:
    """The links that a message from `role` to `peer` crosses, as records name them."""
    here, there = region_of(role), region_of(peer)
    return [f"{role}>{here}", *([f"{here}>{there}"] if here != there else []), f"{there}>{peer}"]


def _asked_clock(role: str, actor: Any) -> Difference:
    """How the clock of the machine that `actor` is on differs from this one's, by Ray's calls."""
    best = None
    for _ in range(ROUNDS):
        asked_s = monotonic()
        told_s = answer_of(role, actor.clock.remote())
        found = difference(asked_s, told_s, told_s, monotonic())
        best = found if best is None or found.error_s < best.error_s else best
    assert best is not None
    return best


def _nothing(change: object) -> None:
    pass
