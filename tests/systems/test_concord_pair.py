"""Concord between two regions, which tell each other what is new directly: nothing is lost, and it takes one way."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from concord_runs import APART, CODINGS, FAR, FAULTS, LAN, MODES, PROFILE, run, task_of
from small_runs import each_system, network, play, quadratic_task

from testbed.layout import Layout
from testbed.message import Message
from testbed.record.events import Sent, StepDone
from testbed.roles.node import Node
from testbed.roles.roles import Roles
from testbed.systems.concord import Concord, ConcordOptions, WorkerState
from testbed.systems.protocols.accounts import Member
from testbed.systems.protocols.desk import Desk, Report
from testbed.systems.protocols.inbox import Inbox
from testbed.systems.protocols.pair import Pair, Pairing
from testbed.systems.protocols.rhythm import Rhythm
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

TOGETHER = {"lan": "together", "wan": "together", "waiting": 1e9}
HERE = {name: [re.sub(r"\bc\b", "b", text) for text in faults] for name, faults in FAULTS.items()}
"""The faults of two regions."""


@pytest.mark.parametrize("mode", each_system(MODES, "auto", "all together", "soon too far"))
def test_nothing_is_lost_or_counted_twice_in_any_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, MODES[mode], pair=True)


@pytest.mark.parametrize("coding", each_system(CODINGS, "default"))
def test_nor_by_any_code(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, CODINGS[coding] | APART, pair=True)


@pytest.mark.parametrize("mode", each_system(["auto", "apart", "all together", "soon too far"], "auto"))
@pytest.mark.parametrize("fault", each_system(set(HERE) - {"none"}, "outages", "killed LPS"))
def test_nor_by_any_fault(fault: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, MODES[mode], HERE[fault], pair=True)


@pytest.mark.parametrize("fault", each_system(HERE, "none", "deaths"))
def test_nor_where_rounds_begin_behind_others(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, {"stale_batches": 1}, HERE[fault], profile=FAR, pair=True)


@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.parametrize("fault", each_system(HERE, "none", "outages"))
def test_nor_where_both_have_a_momentum(fault: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [text for text in HERE[fault] if workers == 2 or "w1" not in text]
    run(monkeypatch, {"outer_momentum": 0.6, "lan": "apart"}, faults, workers=workers, pair=True)


@pytest.mark.parametrize(
    "fault", each_system(["none", "partition", "killed LPS", "killed worker", "region leaves"], "none")
)
def test_every_worker_ends_with_the_average_to_the_bit(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody has told both regions what it is."""
    played = run(monkeypatch, {"end_error": 0.001}, HERE[fault], pair=True)
    roles = played.system.task.roles
    first = played.states[roles.workers[0]].weights
    assert all(torch.equal(played.states[name].weights, first) for name in roles.workers)
    for server in roles.lpss:
        assert torch.equal(played.states[server].books.total, first), server
    assert played.states["a/lps"].link.closed >= 3


@pytest.mark.parametrize("at_s", [0.2, pytest.param(0.9, marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", each_system(["b/w1", "b/lps", "a/lps", "a/gs"], "b/lps"))
def test_who_begins_afresh_is_heard_again(who: str, at_s: float) -> None:
    fault = f"kill {who} at {at_s}s for 100ms restart=fresh"
    played = play("concord", task_of(regions="ab", pair=True), PROFILE, stops=(9,), faults=[fault])
    first = played.states["a/w0"].weights
    assert all(torch.equal(played.states[name].weights, first) for name in played.system.task.roles.workers)


@pytest.mark.parametrize(("first_s", "again_s"), [(0.5, 0.7), (0.9, 1.0)])
def test_an_answer_to_an_earlier_life_is_no_answer(
    first_s: float, again_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hold the same after each round, though who began afresh twice within a round trip has asked twice."""
    told: dict[int, torch.Tensor] = {}
    close = Pairing.close

    def closing(pairing: Pairing, pair: Pair, link: Member, momentum: float) -> torch.Tensor:
        change = close(pairing, pair, link, momentum)
        assert torch.equal(told.setdefault(link.closed, link.told.clone()), link.told)
        return change

    monkeypatch.setattr(Pairing, "close", closing)
    faults = [f"kill c/lps at {at_s}s for 50ms restart=fresh" for at_s in (first_s, again_s)]
    play("concord", task_of(regions="bc", steps=60, pair=True), FAR, {"wan_rest": 0}, faults=faults)
    assert len(told) >= 3


@pytest.mark.parametrize("more", [{"outer_rate": 1.4}, {"outer_momentum": 0.6}])
def test_it_trains_as_by_way_of_a_server_that_is_near_both(more: dict[str, float]) -> None:
    """With ways of half the length, and no code on the way down: what is added on purpose is added as often."""
    options = {"error": 0.0, "end_error": 0.0, "lan": "together", **more}
    near = network(("a", "b", "c"), LAN, Link(1e5, 10))
    task = {pair: task_of(regions="bc", steps=60, pair=pair, optimizer=SGD(momentum=0.9)) for pair in (True, False)}
    direct = play("concord", task[True], network(("a", "b", "c"), LAN, Link(1e5, 20)), options)
    served = play("concord", task[False], near, options)
    plain = play("concord", task[False], near, {**options, "outer_rate": 1.0, "outer_momentum": 0.0})
    away = (direct.models["full"] - served.models["full"]).norm()
    assert float(away) < 0.02 * float((plain.models["full"] - served.models["full"]).norm())


def test_a_round_takes_one_way() -> None:
    """A round is over after half of a round trip, and nothing goes by the global server."""
    options = {"lan": "apart", "end": False}
    rounds = {}
    for pair in (False, True):
        played = play("concord", task_of(regions="bc", pair=pair), FAR, options)
        rounds[pair] = played.states["b/lps"].rhythm.round_s
        served = sum(event.messages for event in played.of(Sent) if "a/gs" in (event.node, event.peer))
        assert (served == 4) is pair, "the ends of the segment, to and from it"
    assert rounds[True] < 0.6 * rounds[False]


def test_a_region_that_is_cut_off_trains_on_and_is_heard_later(monkeypatch: pytest.MonkeyPatch) -> None:
    played = run(monkeypatch, {"stale_batches": 1}, ["partition b at 0.4s for 60s"], stops=(), pair=True)
    done = [event for event in played.of(StepDone) if event.node.startswith("b/")]
    assert max(event.time_s for event in done) < 10, "its steps do not wait for the others"
    assert played.clock_s > 60, "the end does: every region is to hold the average"


@pytest.mark.parametrize("more", [{"outer_rate": 1.4}, {"outer_momentum": 0.6}])
@pytest.mark.parametrize(("steps", "rested"), [(60, False), (79, True)])
def test_the_end_is_the_mean_of_the_copies_but_for_what_no_steps_have_answered(
    steps: int, rested: bool, more: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by way of a server: what was added in a round that they have not rested from is left out of it."""
    copies, added, tell_last, send_last = [], [], Concord._tell_last, Pairing.code_last

    async def telling(system: Concord, node: Node, state: WorkerState, inbox: Inbox) -> None:
        copies.append(state.weights.clone())
        await tell_last(system, node, state, inbox)

    def sending(pairing: Pairing, link: Member, *arguments: Any) -> Any:
        added.extend([link.over.clone()] if len(link.over) else [])
        return send_last(pairing, link, *arguments)

    monkeypatch.setattr(Concord, "_tell_last", telling)
    monkeypatch.setattr(Pairing, "code_last", sending)
    task = task_of(regions="bc", steps=steps, pair=True, optimizer=SGD(momentum=0.9))
    options = {"error": 0.0, "end_error": 0.0, "lan": "together", **more}
    ended = play("concord", task, FAR, options)
    again = torch.stack(added).mean(0) if added else 0.6 * ended.states["b/lps"].pair.velocity
    assert float(again.abs().max()) > 0.005
    expected = torch.stack(copies).mean(0) - again * (not rested)
    torch.testing.assert_close(ended.models["full"], expected, rtol=1e-4, atol=1e-4)


def test_who_has_lost_the_other_for_good_ends_with_what_it_has() -> None:
    played = play("concord", task_of(regions="ab", pair=True), PROFILE, {"end_error": 0.0}, faults=["kill b/* at 0.6s"])
    alone = played.system.task.learner(0), played.system.task.learner(1)
    goal = torch.stack([learner.target for learner in alone]).mean(0)  # type: ignore[attr-defined]
    ended, before = played.states["a/w0"].weights, played.system.task.initial
    assert torch.equal(ended, played.states["a/w1"].weights)
    assert float((ended - goal).norm()) < 0.5 * float((before - goal).norm()), "not half of the way that it made"


def test_a_round_tells_of_the_pause_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not of the one before the last: by it both decide how coarse the next ones are."""
    told, opened = [], Concord._opened

    def noting(system: Concord, node: Node, state: Any, message: Message) -> None:
        if node.name.endswith("lps"):
            told.append((Report(*message.numbers[2:]).gap_s, state.rhythm.gap_s))
        opened(system, node, state, message)

    monkeypatch.setattr(Concord, "_opened", noting)
    play("concord", task_of(regions="ab", pair=True, steps=60, optimizer=SGD(momentum=0.9)), FAR)
    assert all(reported == real for reported, real in told)
    assert sum(real > 0.9 for _, real in told) >= 4, "twenty steps of rest"


@pytest.mark.parametrize("for_ms", [50, 200])
@pytest.mark.parametrize("at_s", each_system([1.26, 1.3, 1.35], 1.26))
def test_who_dies_after_its_last_is_told_how_the_run_ended(at_s: float, for_ms: int) -> None:
    """Its last is on its way, and the other's comes while it is dead or asks; it knows nothing of the average."""
    faults = [f"kill c/lps at {at_s}s for {for_ms}ms"]
    played = play("concord", task_of(regions="bc", pair=True), FAR, faults=faults)
    first = played.states["b/w0"].weights
    assert all(torch.equal(played.states[name].weights, first) for name in played.system.task.roles.workers)


@pytest.mark.parametrize("fault", ["pause b/w1 at 0.5s for 300ms", "kill b/w1 at 0.5s for 500ms"])
def test_regions_that_wait_for_each_other_get_over_a_fault(fault: str) -> None:
    """With the pace of before, and where one of them has a round less to make in the end."""
    task = task_of(regions="ab", steps=48, pair=True)
    undisturbed, played = (play("concord", task, PROFILE, TOGETHER, faults=faults) for faults in ([], [fault]))
    assert played.clock_s < undisturbed.clock_s + 0.6
    assert torch.equal(played.states["a/w0"].weights, played.states["b/w1"].weights)


class Rounds:
    """Of each region, what its rhythm is after each round, and how many of its steps the other has not heard of."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of: dict[str, list[Rhythm]] = {"b/lps": [], "c/lps": []}
        self.unheard: list[int] = []
        heard, hold = Concord._heard_above, Concord._hold

        def hearing(system: Concord, node: Node, state: Any) -> None:
            heard(system, node, state)
            self.of[node.name].append(replace(state.rhythm))

        async def holding(system: Concord, node: Node, state: Any, desk: Desk) -> None:
            await hold(system, node, state, desk)
            if node.name in self.of and desk.mean is None and not system._is_gone(node, state):
                self.unheard.append(state.made - state.rhythm.heard)

        patch.setattr(Concord, "_heard_above", hearing)
        patch.setattr(Concord, "_hold", holding)

    @classmethod
    def played(cls, patch: pytest.MonkeyPatch, fault: str, **options: Any) -> Rounds:
        """Of a run in which one region is behind the other."""
        rounds = cls(patch)
        task = task_of(regions="bc", steps=120, pair=True, optimizer=SGD(momentum=0.9))
        play("concord", task, FAR, options, faults=[fault])
        return rounds


@pytest.mark.parametrize("lan", ["auto", "together"])
@pytest.mark.parametrize("fault", ["pause c/* at 0.5s for 700ms", "slow c/* factor=1.3 at 0s"])
def test_a_round_takes_both_as_long_whoever_began_it_later(
    fault: str, lan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's part may be there already: it is late all the same, and a next part does not come sooner for it."""
    rounds = Rounds.played(monkeypatch, fault, lan=lan)
    for name, found in rounds.of.items():
        assert len(found) >= 4, name
        assert all(rhythm.late and rhythm.rest for rhythm in found[:-1]), f"{name}: but when no more steps are made"
        assert min(rhythm.round_s for rhythm in found) > 0.3, "one way"


@pytest.mark.parametrize("batches", each_system([6, 10, 18], 6))
@pytest.mark.parametrize("fault", ["pause c/* at 0.5s for 700ms", "slow c/* factor=1.6 at 0s"])
def test_nobody_goes_further_than_is_said_ahead_of_what_the_other_has_heard(
    fault: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds.played(monkeypatch, fault, stale_batches=batches)
    assert 2 * batches <= max(rounds.unheard) <= 2 * batches + 2, "a step or two until they hear that they are to wait"


@pytest.mark.parametrize(("mbit", "coarse"), [(0.6, False), (0.1, True)])
def test_bits_that_are_most_of_a_round_are_made_fewer(mbit: float, coarse: bool) -> None:
    """Seen by what an empty message takes, which is not behind a part of a round."""
    task = quadratic_task(
        Roles(("b", "c"), 2, "a", "tree", mesh=True),
        120,
        layout=Layout.of([("weight", (30000,))]),
        training=Training(steps=120, schedule=Constant(rate=0.05)),
    )
    played = play("concord", task, network(("a", "b", "c"), LAN, Link(mbit, 600)), {"end": False, "stale_batches": 0})
    for lps in ("b/lps", "c/lps"):
        state = played.states[lps]
        assert state.link.coarse is coarse
        assert state.rhythm.trip_s == pytest.approx(0.3, abs=0.01)


def test_it_is_not_asked_of_who_goes_by_the_server() -> None:
    assert Concord.is_mesh(ConcordOptions(), 2)
    assert not Concord.is_mesh(ConcordOptions(), 3)
    assert not Concord.is_mesh(ConcordOptions(pair=False), 2)
