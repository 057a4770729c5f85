"""What the tests of `concord` play: regions, a network that is near and one that is far, and a quadratic task; and how
they hold what a run has against what its steps made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.layout import Layout
from testbed.roles.life import Life
from testbed.roles.roles import Kind, Roles
from testbed.systems import Task
from testbed.systems.concord import Concord, WorkerState
from testbed.systems.protocols.accounts import Accounts, Books, Member
from testbed.systems.protocols.pair import Pair, Pairing
from testbed.wan.profile import Link, Profile
from testbed.workloads.config import Training
from testbed.workloads.schedule import Constant

LAN, WAN = Link(1000, 0.5), Link(50, 40)
PROFILE = network(("a", "b", "c"), LAN, WAN)
FAR = network(("a", "b", "c"), LAN, Link(50, 600))
STEPS = 24  # of some 50 ms
TWO = Layout.of([("first.weight", (12, 8)), ("last.bias", (8,))])
APART, TOGETHER = {"lan": "apart"}, {"lan": "together"}


def task_of(
    kind: Kind = "tree",
    steps: int = STEPS,
    regions: Sequence[str] = "abc",
    workers: int = 2,
    pair: bool = False,
    **training: Any,
) -> Task:
    """`pair`: whether two regions may exchange directly."""
    roles = Roles(tuple(regions), workers, "a", kind, mesh=pair)
    training = {"steps": steps, "schedule": Constant(rate=0.05), **training}
    return quadratic_task(roles, steps, layout=TWO, training=Training(**training))


FAULTS = {
    "none": [],
    "partition": ["partition b at 0.5s for 1s"],
    "brown-out": ["rate * factor=0.02 at 0.3s for 1s"],
    "outages": ["cut a=b mtbf 500ms mttr 400ms seed=1", "pause */w1 mtbf 1s mttr 500ms seed=2"],
    "straggler": ["slow b/w1 factor=12 at 0.3s for 1s"],
    "paused LPS": ["pause c/lps at 0.5s for 800ms"],
    "killed worker": ["kill b/w1 at 0.4s for 500ms"],
    "killed LPS": ["kill c/lps at 0.5s for 500ms"],
    "killed server": ["kill a/gs at 0.5s for 500ms"],
    "killed for good": ["kill b/w1 at 0.4s"],
    "killed at once": ["kill b/w1 at 0.001s"],
    "region leaves": ["leave c at 0.5s for 700ms"],
    "region joins": ["join b at 0.6s"],
    "killed LPS at the end": ["kill c/lps at 1.25s for 100ms"],
    "killed server at the end": ["kill a/gs at 1.3s for 100ms"],
    "killed worker at the end": ["kill b/w1 at 1.2s for 100ms"],
    "deaths": ["kill b/* mtbf 400ms mttr 150ms seed=3", "kill c/w0 mtbf 500ms mttr 100ms seed=4"],
}
CODINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "coarse": {"error": 0.25},
    "float32": {"error": 0.0},
    "feedback": {"coding": "feedback"},
    "averaged velocity": {"velocity": "averaged", "momentum": 0.8, "rate": 0.01},
    "Muon": {"inner": "muon", "rate": 0.04},
}
MODES: dict[str, dict[str, Any]] = {
    "auto": {},
    "apart": APART,
    "together": TOGETHER,
    "all together": {"lan": "together", "wan": "together"},
    "seldom": {"lan": "apart", "lan_rest": 3, "wan_rest": 5},
    "no end": {"end": False},
    "soon too far": {"lan": "apart", "stale_batches": 1},
}


class Steps:
    """The mean over the workers of what steps have added to weights, and servers' momentum to all, in float64."""

    def __init__(self, patch: pytest.MonkeyPatch, roles: Roles) -> None:
        self.made = torch.zeros(TWO.size, dtype=torch.float64)
        workers, update = len(roles.workers), Concord._update

        def counted(system: Concord, state: WorkerState, gradient: torch.Tensor, step: int) -> None:
            before = state.weights.double()
            update(system, state, gradient, step)
            self.made += (state.weights.double() - before) / workers

        def noticed(method: Callable[..., None]) -> Callable[..., None]:
            def noticing(accounts: Accounts, books: Books, *arguments: Any) -> None:
                before = books.total.double()
                method(accounts, books, *arguments)
                top = len(books.counted) == len(roles.lpss or roles.workers) and not roles.mesh
                share = 1 if top else 1 / len(roles.regions)
                self.made += share * (books.total.double() - before)[: TWO.size]

            return noticing

        patch.setattr(Concord, "_update", counted)
        for method in (Accounts.go_on, Accounts.take_back):
            patch.setattr(Accounts, method.__name__, noticed(method))
        self._notice_pairs(patch)

    def _notice_pairs(self, patch: pytest.MonkeyPatch) -> None:
        """Both of two regions move by their momentum, which is one move of all."""
        close, end, seen = Pairing.close, Pairing.end, set[int]()

        def closing(pairing: Pairing, pair: Pair, link: Member, momentum: float) -> torch.Tensor:
            change = close(pairing, pair, link, momentum)
            if momentum and link.closed not in seen:
                self.made += momentum * pair.velocity.double()[: TWO.size]
                seen.add(link.closed)
            return change

        def ending(pairing: Pairing, pair: Pair, link: Member, momentum: float) -> torch.Tensor:
            sides = [side for side in (pair.mine, pair.theirs) if side.has_ended]
            unsettled = [side for side in sides if side.settled < pair.went_on]
            if unsettled and -1 not in seen:
                self.made -= momentum * pair.velocity.double()[: TWO.size] * len(unsettled) / len(sides)
            seen.add(-1)
            return end(pairing, pair, link, momentum)

        patch.setattr(Pairing, "close", closing)
        patch.setattr(Pairing, "end", ending)


def total(states: Mapping[str, Any], roles: Roles) -> torch.Tensor:
    """What a run holds: z and the sum of share (x - a), over the tree, less rounds counted that are still under way."""

    def held(server: str) -> torch.Tensor:
        books: Books = states[server].books
        clients = roles.clients_of(server)
        kept = books.total.double()[: TWO.size].clone()
        for place, name in enumerate(clients):
            link = states[name].link
            x = held(name) if name in roles.lpss else states[name].weights.double()
            under_way = (link.sent, link.behind)[: max(0, books.counted[place] - link.closed)]
            for sent in under_way:
                x = x - sent.double()[: TWO.size]
            kept += (x - link.told.double()[: TWO.size]) / len(clients)
        return kept

    if not (roles.mesh and len(roles.lpss) == 2):
        return held(roles.global_server)
    newest = max((states[name].link for name in roles.lpss), key=lambda link: link.closed)
    told, kept = newest.told.double()[: TWO.size], torch.zeros(TWO.size, dtype=torch.float64)
    for name in roles.lpss:
        link = states[name].link
        kept += (held(name) - link.told.double()[: TWO.size]) / 2
        if not torch.equal(link.told, newest.told):  # it has not heard of what is over
            counted = (link.sent, link.behind)[: newest.closed - link.closed]
            kept -= sum(sent.double()[: TWO.size] / 2 for sent in counted if len(sent))
    return told + kept


def _who_rests(patch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Who is dead as a segment ends, and the step that this ends with."""
    rest, dead = Life._rest, set[tuple[str, int]]()

    async def resting(life: Life, stop_at: int) -> None:
        dead.add((life._node.name, stop_at))
        await rest(life, stop_at)

    patch.setattr(Life, "_rest", resting)
    return dead


def run(
    patch: pytest.MonkeyPatch,
    options: Mapping[str, Any],
    faults: Sequence[str] = (),
    kind: Kind = "tree",
    stops: Sequence[int] = (9,),
    profile: Profile = PROFILE,
    workers: int = 2,
    pair: bool = False,
) -> Played:
    """Play it and hold the sum against what steps made, at each boundary; the end may drop what its code leaves out.

    And it has no part of a region that is dead then, and has not heard of it: of two regions that is not checked. Where
    both are alive they end with the same.
    """
    task = task_of(kind, regions="ab" if pair else "abc", workers=workers, pair=pair)
    options = {"end_error": 0.0, "outer_rate": 1.0, **options}
    steps = Steps(patch, task.roles)
    boundaries: list[torch.Tensor] = []
    dead = _who_rests(patch)

    def check(states: Mapping[str, Any]) -> None:
        boundaries.append(total(states, task.roles) - task.initial.double() - steps.made)

    played = play("concord", task, profile, options, stops, between=check, faults=faults)
    assert float(steps.made.abs().max()) > 0.5
    assert len(boundaries) == len(stops) + 1
    if pair and dead & {(name, STEPS) for name in task.roles.lpss}:
        boundaries.pop()
    elif pair and options.get("end", True):
        assert len({tuple(played.states[name].link.told.tolist()) for name in task.roles.lpss}) == 1
    largest = [float(away.abs().max()) for away in boundaries]
    assert max(largest[: len(stops)], default=0.0) < 1e-5, largest
    dropped = 2 * options["end_error"] * steps.made.square().mean()  # of what members send, and of what they are told
    assert len(largest) == len(stops) or largest[-1] < 1e-5 or boundaries[-1].square().mean() < dropped, largest
    return played
