"""Concord: what steps made is neither lost nor counted twice, who waits for whom, and how it ends.

Sums are checked with an outer rate of 1; `protocols/test_accounts.py` has what another does to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from small_runs import Played, each_system, network, play, quadratic_task

from testbed.codecs.base import Key
from testbed.errors import InputError
from testbed.layout import Layout
from testbed.message import Message
from testbed.record.events import Absent, LinkBytes, StepDone
from testbed.roles.node import Node
from testbed.roles.roles import Kind, Roles
from testbed.systems import Task
from testbed.systems.concord import Concord, ConcordOptions, WorkerState
from testbed.systems.protocols.accounts import Accounts, Books, Member
from testbed.systems.protocols.inbox import Inbox
from testbed.wan.profile import Link, Profile
from testbed.workloads.config import Training
from testbed.workloads.muon import Muon
from testbed.workloads.optimizer import SGD, Adam
from testbed.workloads.schedule import Constant

LAN, WAN = Link(1000, 0.5), Link(50, 40)
PROFILE = network(("a", "b", "c"), LAN, WAN)
FAR = network(("a", "b", "c"), LAN, Link(50, 600))
STEPS = 24  # of some 50 ms
TWO = Layout.of([("first.weight", (12, 8)), ("last.bias", (8,))])
APART, TOGETHER = {"lan": "apart"}, {"lan": "together"}
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


def task_of(
    kind: Kind = "tree", steps: int = STEPS, regions: Sequence[str] = "abc", workers: int = 2, **training: Any
) -> Task:
    roles = Roles(tuple(regions), workers, "a", kind)
    training = {"steps": steps, "schedule": Constant(rate=0.05), **training}
    return quadratic_task(roles, steps, layout=TWO, training=Training(**training))


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
                share = 1 if len(books.counted) == len(roles.lpss or roles.workers) else 1 / len(roles.regions)
                self.made += share * (books.total.double() - before)[: TWO.size]

            return noticing

        patch.setattr(Concord, "_update", counted)
        for method in (Accounts.go_on, Accounts.take_back):
            patch.setattr(Accounts, method.__name__, noticed(method))


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

    return held(roles.global_server)


def run(
    patch: pytest.MonkeyPatch,
    options: Mapping[str, Any],
    faults: Sequence[str] = (),
    kind: Kind = "tree",
    stops: Sequence[int] = (9,),
    profile: Profile = PROFILE,
    workers: int = 2,
) -> Played:
    """Play it and hold the sum against what steps made, at each boundary; the end may drop what its code leaves out."""
    task, options = task_of(kind, workers=workers), {"end_error": 0.0, "outer_rate": 1.0, **options}
    steps = Steps(patch, task.roles)
    boundaries: list[torch.Tensor] = []

    def check(states: Mapping[str, Any]) -> None:
        boundaries.append(total(states, task.roles) - task.initial.double() - steps.made)

    played = play("concord", task, profile, options, stops, between=check, faults=faults)
    assert float(steps.made.abs().max()) > 0.5
    assert len(boundaries) == len(stops) + 1
    largest = [float(away.abs().max()) for away in boundaries]
    assert max(largest[:-1], default=0.0) < 1e-5, largest
    dropped = 2 * options["end_error"] * steps.made.square().mean()  # of what members send, and of what they are told
    assert largest[-1] < 1e-5 or boundaries[-1].square().mean() < dropped, largest
    return played


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
    with pytest.raises(AssertionError, match=r"max\("):
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


def together(played: Played) -> dict[str, int]:
    return {name: played.states[name].period for name in played.system.task.roles.workers}


@pytest.mark.parametrize(
    ("rate_mbit", "rtt_ms", "periods"),
    [pytest.param(1000, 0.5, {1}, marks=pytest.mark.slow), (1000, 30, {3, 4}), (1000, 300, {0})],
)
def test_the_mode_follows_from_a_rounds_time_over_a_steps(rate_mbit: float, rtt_ms: float, periods: set[int]) -> None:
    """A step takes 52 ms, a round a round trip and some 10 ms; k = ceil(4 r), and above 4 nobody waits."""
    profile = network(("a", "b", "c"), Link(rate_mbit, rtt_ms), WAN)
    played = play("concord", task_of(), profile, {"waiting": 0.25, "drift": 4})
    assert set(together(played).values()) <= periods, together(played)
    waited = sum(event.lan_s for event in played.of(StepDone)) / sum(
        event.compute_s + event.codec_s for event in played.of(StepDone)
    )
    assert waited <= 0.4, "the rule's share, and what the first rounds took until it was known"


@pytest.mark.slow
def test_the_mode_changes_while_the_run_goes_on() -> None:
    """Workers that are slow wait for their LAN, which takes a third of their step; fast again, they do not."""
    task, periods = task_of(), []

    def note(states: Mapping[str, Any]) -> None:
        periods.append({states[name].period for name in task.roles.workers})

    profile = network(("a", "b", "c"), Link(1000, 60), WAN)
    slow = ["slow */w* factor=4 at 0s for 2s"]
    play("concord", task, profile, {"waiting": 0.25, "drift": 2}, stops=(7,), between=note, faults=slow)
    assert min(periods[0]) > 0 and periods[1] == {0}, periods


@pytest.mark.parametrize(("lan", "coarse"), [(Link(1, 0.5), True), (Link(1000, 300), False), (Link(1000, 0.5), False)])
def test_rounds_are_coded_coarsely_where_their_bits_are_what_they_take(lan: Link, coarse: bool) -> None:
    """30,000 elements, some 9 kB: on a LAN of 1 Mbit/s those of two workers take more than two steps of rest."""
    task = quadratic_task(Roles(("a", "b"), 2, "a", "tree"), STEPS, layout=Layout.of([("w", (30_000,))]))
    played = play("concord", task, network(("a", "b"), lan, Link(1000, 300)), {"end": False})
    for name in task.roles.workers:
        assert played.states[name].link.coarse == coarse, played.states[name].rhythm
    assert not any(played.states[name].link.coarse for name in task.roles.lpss), "most of a WAN round is its way"


@pytest.mark.slow
def test_nobody_waits_for_the_wan() -> None:
    near, far = (
        play("concord", task_of(), network(("a", "b", "c"), LAN, Link(50, rtt)), {"end": False}) for rtt in (2, 400)
    )

    def done(played: Played) -> float:
        return max(event.time_s for event in played.of(StepDone))

    assert done(far) == pytest.approx(done(near), rel=0.02)


def test_a_region_waits_with_so_many_steps_that_no_other_has_heard_of() -> None:
    """What it has by then goes behind the round that is under way: it waits for one round trip from then on."""
    played = play("concord", task_of(regions="bc"), FAR, {"stale_batches": 3, "end": False})
    done = [event.time_s for event in played.of(StepDone) if event.node == "b/w0"]
    gaps = [after - before for before, after in pairwise(done)]
    first = next(step for step, gap_s in enumerate(gaps, 1) if gap_s > 0.2)
    assert first in (6, 7, 8)
    assert gaps[first - 1] == pytest.approx(0.65, abs=0.1)
    made = [len(list(steps)) for waits, steps in groupby(gaps, lambda gap_s: gap_s > 0.1) if not waits]
    assert max(made) <= 7, made


def test_one_that_has_no_others_never_waits() -> None:
    played = play("concord", task_of(regions="b"), FAR, {"stale_batches": 3, "end": False})
    done = [event.time_s for event in played.of(StepDone) if event.node == "b/w0"]
    assert max(after - before for before, after in pairwise(done)) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("stale", [0, 1])
def test_a_region_that_is_cut_off_trains_on_and_is_heard_later(stale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    played = run(monkeypatch, {"stale_batches": stale}, ["partition b at 0.4s for 60s"], stops=())
    done = [event for event in played.of(StepDone) if event.node.startswith("b/")]
    assert max(event.time_s for event in done) < 10, "its steps do not wait for the others"
    assert played.clock_s > 60, "the end does: every region is to hold the average"


def test_who_is_late_is_left_out_of_a_round_until_it_is_heard_of() -> None:
    played = play("concord", task_of(), PROFILE, TOGETHER, faults=["pause b/w1 at 0.5s for 2s"])
    absent = [(event.node, event.peer, event.back) for event in played.of(Absent) if event.node == "b/lps"]
    assert absent == [("b/lps", "b/w1", False), ("b/lps", "b/w1", True)]
    others = [event.time_s for event in played.of(StepDone) if event.node == "b/w0"]
    assert sum(0.5 <= time_s < 2.4 for time_s in others) > STEPS / 4, "they go on meanwhile"


@pytest.mark.parametrize("at_s", [0.2, pytest.param(0.9, marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", each_system(["b/w1", "c/lps", "a/gs"], "a/gs"))
def test_who_begins_afresh_is_heard_again(who: str, at_s: float) -> None:
    """Even where its members have ended their segment by then, and ask nothing."""
    fault = f"kill {who} at {at_s}s for 100ms restart=fresh"
    played = play("concord", task_of(), FAR, stops=(9,), faults=[fault])
    first = played.states["a/w0"].weights
    assert all(torch.equal(played.states[name].weights, first) for name in played.system.task.roles.workers)


@pytest.mark.slow
def test_who_is_left_out_does_not_set_the_others_back() -> None:
    """A region that has lost the others comes as far as one that never meets them: they have its credit."""
    others_go = ["partition b at 0.4s for 60s", "partition c at 0.4s for 60s"]

    def far(faults: Sequence[str], **options: Any) -> float:
        options = {"end": False, "scaled": False, **options}
        played = play("concord", task_of(), PROFILE, options, stops=(), faults=faults)
        here = torch.stack([played.states[f"a/w{k}"].weights for k in (0, 1)]).mean(0)
        return float((here - played.system.task.initial).norm())

    assert far(others_go, wan_rest=0) == pytest.approx(far((), wan_rest=999), rel=0.05)


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
