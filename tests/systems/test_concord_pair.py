"""Concord between two regions, which tell each other what is new directly: nothing is lost, and it takes one way."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from concord_runs import APART, CODINGS, FAR, FAULTS, LAN, MODES, PROFILE, run, task_of
from small_runs import each_system, network, play

from testbed.message import Message
from testbed.record.events import Sent, StepDone
from testbed.roles.node import Node
from testbed.systems.concord import Concord, WorkerState
from testbed.systems.protocols.accounts import Member
from testbed.systems.protocols.desk import Report
from testbed.systems.protocols.inbox import Inbox
from testbed.systems.protocols.pair import Pairing
from testbed.wan.profile import Link
from testbed.workloads.optimizer import SGD

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


@pytest.mark.parametrize("fault", each_system(["none", "partition", "killed worker", "region leaves"], "none"))
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
@pytest.mark.parametrize(("steps", "rested"), [(60, False), (73, True)])
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
