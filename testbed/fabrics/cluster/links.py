"""What joins the nodes of a cluster before a run, as a profile: each pair of regions both ways, and a LAN."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import combinations, permutations
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from testbed.errors import InputError, NetworkError, RunError, TestbedError
from testbed.experiment.schema import Cluster, Experiment
from testbed.fabrics.cluster import fitness, placement
from testbed.fabrics.cluster.placement import Spot
from testbed.fabrics.cluster.surveyor import LONG_S, PINGS, ROWS, Measured, Surveyor
from testbed.wan.profile import Link, Origin, Profile

NAME = "measured-network"
START_S = 180.0  # for processes to import what they need, and to open the data set
MEASURE_S = 300.0

Way = tuple[str, str]  # from one node to another, by their ids


class Survey:
    """Surveyors on all nodes that could take part; a context manager, which ends them."""

    def __init__(self, asked: Cluster, found: Sequence[Spot]) -> None:
        self._asked = asked
        self._spots = {spot.node_id: spot for spot in found}
        kind: Any = ray.remote(Surveyor)
        self._actors = {
            spot.node_id: kind.options(num_cpus=0, scheduling_strategy=on(spot)).remote(
                spot.address, asked.encrypt, asked.port_range
            )
            for spot in found
        }

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *error: object) -> None:
        for actor in self._actors.values():
            ray.kill(actor)

    def fit(
        self,
        experiment: dict[str, Any],
        there: dict[str, Any],
        regions: Sequence[str],
        say: Callable[[str], None],
    ) -> list[Spot]:
        """The nodes that can take part; `say` is told why another cannot.

        Parameters
        ----------
        experiment, there : plain data, as it is here and as nodes find it

        Raises
        ------
        InputError
            A region has no such node.
        """
        wanted = fitness.here(experiment)
        unfit = self._answers({each: ("unfit", wanted, there) for each in self._actors}, START_S)
        said = {self._spots[each].address: why for each, why in unfit.items() if why}
        for address, why in said.items():
            say(f"node {address} is passed over: {why}")
        able = [self._spots[each] for each, why in unfit.items() if not why]
        reasons = "; ".join(f"node {address}: {why}" for address, why in said.items())
        placement.check(able, regions, f" that can play this ({reasons})" if reasons else "")
        return able

    def profile(self, experiment: Experiment, able: Sequence[Spot], regions: Sequence[str]) -> Profile | None:
        """What joins these nodes, or the first of each region; None where there is one region only."""
        if len(regions) < 2:
            return None
        first = {region: next(spot for spot in able if spot.region == region) for region in regions}
        wan = {(first[a].node_id, first[b].node_id): (a, b) for a, b in permutations(regions, 2)}
        lan = _two_of_a_region(able)
        measured = self._measured([*wan, *([lan] if lan else [])])
        links = {pair: _link(measured[way]) for way, pair in wan.items()}
        return _profile(experiment, links, _link(measured[lan]) if lan else None, self._asked.encrypt)

    def _measured(self, ways: Sequence[Way]) -> dict[Way, Measured]:
        pairs = {(min(way), max(way)) for way in ways}
        nodes = {node for pair in pairs for node in pair}
        signs = self._answers({a: ("listen", [b for c, b in pairs if c == a]) for a in nodes}, START_S)
        self._answers({a: ("admit", {b: signs[b].key for c, b in pairs if c == a}) for a in nodes}, START_S)
        self._answers({b: ("dial", b, {a: signs[a] for a, c in pairs if c == b}) for b in nodes}, START_S)
        found: dict[Way, Measured] = {}
        for together in rounds(ways):
            answers = self._answers({a: ("measure", b) for a, b in together}, MEASURE_S)
            found |= {(a, b): answers[a] for a, b in together}
        return found

    def _answers(self, calls: Mapping[str, tuple[Any, ...]], within_s: float) -> dict[str, Any]:
        """Call a method of several surveyors at once, by their nodes' ids."""
        pending = {
            getattr(self._actors[node], method).remote(*arguments): node for node, (method, *arguments) in calls.items()
        }
        done, late = ray.wait([*pending], num_returns=len(pending), timeout=within_s) if pending else ([], [])
        if late:
            raise NetworkError(f"node {self._named(pending[late[0]])} has not answered for {within_s:g} s")
        return {pending[each]: self._answer(pending[each], each) for each in done}

    def _answer(self, node: str, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            kind = InputError if isinstance(cause, InputError) else RunError
            line = str(cause) if isinstance(cause, TestbedError) else f"{type(cause).__name__}: {cause}"
            raise kind(f"node {self._named(node)}: {self._renamed(line.splitlines()[0])}") from None
        except RayActorError as error:
            last = [line for line in str(error).splitlines() if line.strip()][-1]
            raise RunError(f"node {self._named(node)}: {last.strip()}") from None

    def _named(self, node: str) -> str:
        return self._spots[node].address

    def _renamed(self, line: str) -> str:
        """Addresses in the place of ids."""
        for node, spot in self._spots.items():
            line = line.replace(node, spot.address)
        return line


def on(spot: Spot) -> NodeAffinitySchedulingStrategy:
    """That node and no other, as Ray takes it."""
    return NodeAffinitySchedulingStrategy(spot.node_id, soft=False)


def rounds(ways: Iterable[Way]) -> list[list[Way]]:
    """The ways in groups of which no two share a node."""
    groups: list[list[Way]] = []
    for way in ways:
        for group in groups:
            if not {node for other in group for node in other} & {*way}:
                group.append(way)
                break
        else:
            groups.append([way])
    return groups


def _two_of_a_region(able: Collection[Spot]) -> Way | None:
    for a, b in combinations(able, 2):
        if a.region == b.region:
            return a.node_id, b.node_id
    return None


def _link(measured: Measured) -> Link:
    return Link(round(measured.goodput_mbit, 3), round(measured.rtt_ms, 3))


def _profile(
    experiment: Experiment, links: Mapping[tuple[str, str], Link], lan: Link | None, encrypted: bool
) -> Profile:
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    asked = experiment.plan.profile
    coded = "CURVE's encryption included" if encrypted else "not encrypted"
    row = f"the fastest of {ROWS} rows of messages of about {LONG_S:g} s"
    how = f"{row} on one TCP connection of ZeroMQ, {coded}, one pair of nodes at a time"
    sources = {"run": f"measured by the run itself before its first step, {date}"}
    if lan is None:
        sources["asked"] = f"profile {asked.name}, which the run named: no region had two nodes"
    return Profile(
        name=NAME,
        title=f"What joined the nodes of a cluster on {date[:10]}",
        regions=tuple(dict.fromkeys(region for pair in links for region in pair)),
        lan=lan or asked.lan,
        pairs=dict(links),
        sources=sources,
        origins={pair: Origin("run") for pair in links},
        lan_source="run" if lan else "asked",
        lan_assumed=lan is None,
        measured=f"goodput: {how}; round trip: shortest of small messages, {PINGS} before all rows and after each",
    )
