"""Concord: what steps made is neither lost nor counted twice, how it ends, and what it averages.

Sums are checked with an outer rate of 1; `protocols/test_accounts.py` has what another does to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from concord_runs import APART, CODINGS, FAR, FAULTS, MODES, PROFILE, STEPS, TWO, run, task_of
from small_runs import Played, each_system, play

from testbed.codecs.base import Key
from testbed.errors import InputError
from testbed.message import Message
from testbed.record.events import LinkBytes, StepDone
from testbed.roles.node import Node
from testbed.roles.roles import Kind
from testbed.systems.concord import Concord, ConcordOptions, WorkerState
from testbed.systems.protocols.accounts import Member
from testbed.systems.protocols.inbox import Inbox
from testbed.workloads.muon import Muon
from testbed.workloads.optimizer import SGD, Adam


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", each_system(MODES, "auto", "all together"))
def test_nothing_is_lost_or_counted_twice_in_any_mode(mode: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, MODES[mode], kind=kind)


@pytest.mark.parametrize("coding", each_system(CODINGS, "float32"))
def test_nor_by_any_code(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, CODINGS[coding])


@pytest.mark.parametrize("mode", each_system(["auto", "apart", "all together", "soon too far"], "auto"))
@pytest.mark.parametrize("fault", each_system(set(FAULTS) - {"none"}, "outages"))
def test_nor_by_any_fault(fault: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, MODES[mode], FAULTS[fault])


@pytest.mark.parametrize("fault", each_system(FAULTS, "none", "outages"))
def test_nor_where_rounds_begin_behind_others(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, {"stale_batches": 1}, FAULTS[fault], profile=FAR)


@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.parametrize("fault", each_system(FAULTS, "none", "outages"))
def test_nor_where_servers_have_a_momentum(fault: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [text for text in FAULTS[fault] if workers == 2 or "w1" not in text]
    run(monkeypatch, {"outer_momentum": 0.6, "lan": "apart"}, faults, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.full)])
def test_nor_by_all_of_them(fault: str, coding: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "flat" and "lps" in FAULTS[fault][:1]:
        pytest.skip("there is none")
    faults = [text.replace("c/lps", "c/w0") if kind == "flat" else text for text in FAULTS[fault]]
    run(monkeypatch, CODINGS[coding] | APART, faults, kind)


@pytest.mark.slow
def test_overwriting_loses_what_was_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"^\[[0-9]"):
        run(monkeypatch, {"merge": "overwrite", "lan": "apart"})


@pytest.mark.parametrize("end_error", [0.001, *(pytest.param(error, marks=pytest.mark.slow) for error in (0.0, 0.1))])
@pytest.mark.parametrize(
    "fault", each_system(["none", "partition", "killed worker", "killed LPS", "region leaves"], "killed LPS")
)
def test_every_worker_ends_with_the_average_to_the_bit(
    fault: str, end_error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = run(monkeypatch, {"end_error": end_error}, FAULTS[fault])
    task = played.system.task
    first = played.states[task.roles.workers[0]].weights
    for name in task.roles.workers:
        assert torch.equal(played.states[name].weights, first), name
        assert played.states[name].step == STEPS
    for server in (task.roles.global_server, *task.roles.lpss):
        assert torch.equal(played.states[server].books.total, first), server


@pytest.mark.parametrize("more", [{"outer_rate": 1.4}, {"outer_momentum": 0.6}])
@pytest.mark.parametrize("kind", ["flat", "tree"])
@pytest.mark.parametrize(("steps", "rested"), [(60, False), (72, True)])
def test_the_end_is_the_mean_of_the_copies_but_for_what_no_steps_have_answered(
    steps: int, rested: bool, kind: Kind, more: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was added in a round whose answer they have not heard of, or not rested from, is left out of it."""
    copies, added, tell_last, send_last = [], [], Concord._tell_last, Concord.send_last

    async def telling(system: Concord, node: Node, state: WorkerState, inbox: Inbox) -> None:
        copies.append(state.weights.clone())
        await tell_last(system, node, state, inbox)

    async def sending(system: Concord, node: Node, link: Member, *arguments: Any) -> None:
        if node.server == node.global_server and len(link.over):
            added.append(link.over.clone())
        await send_last(system, node, link, *arguments)

    optimizer = SGD(momentum=0.9)  # after which they rest for 20 steps; a round across the WAN takes 12
    task = task_of(kind, steps, regions="bc", optimizer=optimizer)  # to which the server is as far
    options = {"error": 0.0, "end_error": 0.0, "lan": "together" if kind == "tree" else "apart"}
    plain = play("concord", task, FAR, {**options, "outer_rate": 1.0})
    monkeypatch.setattr(Concord, "_tell_last", telling)
    monkeypatch.setattr(Concord, "send_last", sending)
    ended = play("concord", task, FAR, {**options, **more})
    assert float((ended.models["full"] - plain.models["full"]).abs().max()) > 0.01, "nothing was counted again"
    velocity = ended.states[task.roles.global_server].books.velocity
    again = torch.stack(added).mean(0) if added else 0.6 * velocity
    assert float(again.abs().max()) > 0.005
    expected = torch.stack(copies).mean(0) - again * (not rested)
    torch.testing.assert_close(ended.models["full"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_end_is_charged() -> None:
    ends: list[dict[str, Any]] = [{"end": False}, {}, {"end_error": 0.0}]
    left_open, closed, whole = (play("concord", task_of(), PROFILE, end) for end in ends)
    assert left_open.clock_s < closed.clock_s < whole.clock_s
    copies = [left_open.states[name].weights for name in left_open.system.task.roles.workers]
    assert not any(torch.equal(copy, copies[0]) for copy in copies[1:])


def test_all_together_in_float32_it_is_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for all at every step, with nothing left out by a code, is synchronous SGD."""
    options = {"lan": "together", "wan": "together", "error": 0.0, "end_error": 0.0, "waiting": 1e9}
    task = task_of(steps=6)
    found = play("concord", task, PROFILE, options)
    expected = play("baseline", task_of(steps=6), PROFILE)
    torch.testing.assert_close(found.models["full"], expected.models["full"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stale", [0, 1])
def test_a_region_that_is_cut_off_trains_on_and_is_heard_later(stale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    played = run(monkeypatch, {"stale_batches": stale}, ["partition b at 0.4s for 60s"], stops=())
    done = [event for event in played.of(StepDone) if event.node.startswith("b/")]
    assert max(event.time_s for event in done) < 10, "its steps do not wait for the others"
    assert played.clock_s > 60, "the end does: every region is to hold the average"


@pytest.mark.parametrize("at_s", [0.2, pytest.param(0.9, marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", each_system(["b/w1", "c/lps", "a/gs"], "a/gs"))
def test_who_begins_afresh_is_heard_again(who: str, at_s: float) -> None:
    """Even where its members have ended their segment by then, and ask nothing."""
    fault = f"kill {who} at {at_s}s for 100ms restart=fresh"
    played = play("concord", task_of(), FAR, stops=(9,), faults=[fault])
    first = played.states["a/w0"].weights
    assert all(torch.equal(played.states[name].weights, first) for name in played.system.task.roles.workers)


# Not with Muon, of whose steps a point is as far as any other, whichever way it lies.
@pytest.mark.slow
@pytest.mark.parametrize("coding", sorted(set(CODINGS) - {"Muon"}))
def test_it_comes_to_the_mean_of_the_workers_points(coding: str) -> None:
    """Each worker pulls to a point of its own, as with shards that differ: the sum's fixed point is their mean."""
    task = task_of(steps=90)
    played = play("concord", task, PROFILE, CODINGS[coding] | APART)
    goal = torch.stack([task.learner(k).target for k in range(len(task.roles.workers))]).mean(0)  # type: ignore[attr-defined]
    away = float((played.models["full"] - goal).norm() / (task.initial - goal).norm())
    assert away < 0.1


@pytest.mark.slow
def test_momentum_is_averaged_where_it_is_asked_for() -> None:
    task = task_of(optimizer=SGD(momentum=0.8))
    local = play("concord", task, PROFILE, {"rate": 0.01, "end": False})
    averaged = play("concord", task, PROFILE, {"rate": 0.01, "velocity": "averaged", "end": False})

    def spread(played: Played) -> float:
        velocities = torch.stack([played.states[name].optimizer.velocity for name in task.roles.workers])
        return float((velocities - velocities.mean(0)).norm() / velocities.mean(0).norm())

    assert spread(averaged) < 0.7 * spread(local)


def test_muon_makes_the_steps_where_it_is_asked_for() -> None:
    """Two workers that never meet: each makes the steps of `testbed.workloads.muon`, which the clock is charged for."""
    task, alone = task_of(steps=3), {"lan_rest": 99, "scaled": False, "end": False}
    played = play("concord", task, PROFILE, alone | {"inner": "muon"}, stops=())
    optimizer, weights = Muon(TWO, SGD()), task.initial.clone()
    state = optimizer.start(weights)
    for step in range(3):
        gradient = task.learner(0).gradient(weights, step)[1]
        optimizer.update(state, weights, gradient, task.rate_at(step))
    assert torch.equal(played.states[task.roles.workers[0]].weights, weights)
    system = Concord(task, ConcordOptions(inner="muon"))
    assert (system.update_work.gemm_flops, system.update_work.nbytes) == (optimizer.flops, optimizer.nbytes)


def test_momentum_that_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(InputError, match="averaged"):
        play("concord", task_of(optimizer=Adam()), PROFILE, {"velocity": "averaged"})
    with pytest.raises(InputError, match="averaged"):
        momentum = SGD(momentum=0.8)
        play("concord", task_of(optimizer=momentum), PROFILE, {"velocity": "averaged", "inner": "muon"})


def test_a_round_takes_few_bits() -> None:
    def wan_bytes(**options: Any) -> float:
        options = {"lan": "together", "wan": "together", "end": False, **options}
        played = play("concord", task_of(), PROFILE, options)
        return sum(event.wan_bytes for event in played.of(LinkBytes))

    assert wan_bytes() < 0.5 * wan_bytes(error=0.0), "layers of 5 to 192 elements; most of it is headers and models"


def test_who_has_been_told_the_same_is_told_the_same_again() -> None:
    """One code for all while all are in, one for each group once somebody was missing; z comes to all of them."""
    task = task_of()
    accounts = Concord(task, ConcordOptions(error=0.01)).accounts
    key = Key(0, 0, 0)
    books, members = accounts.books(3), [accounts.member() for _ in range(3)]

    def round_of(places: Sequence[int]) -> list[list[int]]:
        for place in places:
            member = members[place]
            buffers = accounts.send(member, member.told + 0.1 * (place + 1), key)
            accounts.count(books, place, Message("difference", 0, buffers, (0.0, float(member.number))))
        answers = accounts.answer(books, places, key)
        for alike, buffers in answers:
            for place in alike:
                accounts.take(members[place], Message("answer", 0, buffers))
        for place, member in enumerate(members):
            assert torch.equal(member.told, books.told[place])
        return [alike for alike, _ in answers]

    assert [round_of(places) for places in ([0, 1, 2], [0, 2], [0, 1, 2])] == [[[0, 1, 2]], [[0, 2]], [[1], [0, 2]]]
    assert not books.credited and float((books.told - books.total).abs().max()) < 0.05
