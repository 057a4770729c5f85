"""Where workers or regions are missing: those who are there train on, who comes back has the weights of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import EXCHANGING, PATIENCE_S, Played, each_system, experiment, network, play, quadratic_task, start

from testbed.errors import InputError, RunError
from testbed.record.events import Absent, StepDone
from testbed.record.reader import load
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS, Task
from testbed.wan.profile import Link

ROLES = {kind: Roles(("a", "b", "c"), 2, "a", kind) for kind in ("tree", "flat")}
PROFILE = network(("a", "b", "c"), lan=Link(1000, 0.5), wan=Link(50, 40))
STEPS = 40  # of some 0.1 s
TOLERANT: dict[str, Any] = {"tolerance": "leave-out", "patience_s": 0.4}
OPTIONS: dict[str, dict[str, Any]] = {
    "weightgrad": {"t_s": 0.5, "t_local_s": 0.3, "t_global_s": 1.0, "threshold_max": 1.0},
    "diloco": {"local_steps": 4},
}
FAULTS = {
    "partition": ["partition b at 1s for 2s"],
    "worker": ["pause b/w1 at 1s for 2s"],
    "LPS": ["pause c/lps at 1s for 1.5s"],
    "two": ["pause b/w0 at 1s for 2s", "partition c at 1.5s for 1s"],
    "again and again": ["partition c at 0.5s for 1s every 3s"],
    "at random": ["cut a=b mtbf 1s mttr 800ms seed=1", "pause */w1 mtbf 3s mttr 1s seed=2"],
    "killed worker": ["kill b/w1 at 0.7s for 700ms"],
    "fresh worker": ["kill b/w1 restart=fresh at 1s for 1s"],
    "killed LPS": ["kill c/lps at 1s for 1.5s"],
    "region": ["kill c restart=fresh at 1s for 1.5s", "pause b/w0 at 2s for 1s"],
    "joins late": ["join b at 1.5s"],
    "leaves and comes back": ["leave c at 0.8s for 2s"],
    "black hole": ["blackhole c=a at 1s for 1.5s"],
    "straggler": ["slow b/w1 factor=12 at 0.7s for 2s"],
}
ABLE = {name for name in SYSTEMS if SYSTEMS[name].tolerant} - {"mqgrad"}  # which needs large layers
QUICK = ("baseline",)
KINDS = ("terngrad", "weightgrad", "gaia", "diloco", "dgc")  # one of a kind; the others are the baseline's roles


def full(system: str) -> Any:
    return pytest.param(system, marks=[pytest.mark.slow, pytest.mark.full])


def played(system: str, faults: list[str], kind: str = "tree", stops: tuple[int, ...] = (), **more: object) -> Played:
    options = {**OPTIONS.get(system, {}), **TOLERANT, **more}
    return play(system, task_of(system, kind), PROFILE, options, stops, faults=faults)


def task_of(system: str, kind: str = "tree") -> Task:
    return quadratic_task(replace(ROLES[kind], mesh=SYSTEMS[system].is_mesh(SYSTEMS[system].options_type(), 2)), STEPS)


def counted(run: Played) -> dict[str, set[int]]:
    """The steps of each worker that have counted."""
    steps: dict[str, set[int]] = {worker: set() for worker in run.system.task.roles.workers}
    for event in run.of(StepDone):
        steps[event.node].add(event.step)
    return steps


@pytest.mark.parametrize("fault", each_system(FAULTS, "region"))
@pytest.mark.parametrize(
    "system", [*each_system([*QUICK, *KINDS], *QUICK), *(full(name) for name in sorted(ABLE - {*QUICK, *KINDS}))]
)
def test_a_run_repeats_to_the_last_bit_and_ends_with_all_its_roles(system: str, fault: str) -> None:
    if fault in ("killed LPS", "region") and "lps" not in SYSTEMS[system].returning:
        pytest.skip("it loses the region")
    first, second = (played(system, FAULTS[fault]) for _ in "12")
    assert first.events == second.events and first.clock_s == second.clock_s
    for name, model in first.models.items():
        assert torch.equal(model, second.models[name]), name
    absent = [(event.node, event.peer, event.back) for event in first.of(Absent)]
    assert absent, "nobody was left out"
    assert sorted(pair for *pair, back in absent if back) == sorted(pair for *pair, back in absent if not back)
    assert all(state.step == STEPS for name, state in first.states.items() if "/gs" not in name)
    assert max(len(each) for each in counted(first).values()) == STEPS


# One who is killed may have a part in an update that it does not live to make.
@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "fault", each_system((name for name, faults in FAULTS.items() if "kill" not in faults[0]), "two", "straggler")
)
def test_an_update_is_the_mean_of_those_who_were_there(fault: str, kind: str) -> None:
    faults = [text.replace("c/lps", "c/*") for text in FAULTS[fault]] if kind == "flat" else FAULTS[fault]
    run = played("baseline", faults, kind)
    task, steps = run.system.task, counted(run)
    weights = task.initial.clone()
    for step in range(STEPS):
        here = [k for k, worker in enumerate(task.roles.workers) if step in steps[worker]]
        gradients = [task.learner(k).gradient(weights, step)[1] for k in here]
        weights -= task.rate_at(step) * torch.stack(gradients).mean(0)
    assert torch.allclose(run.models["full"], weights, atol=1e-5)
    assert len({len(each) for each in steps.values()}) > 1


@pytest.mark.parametrize("fault", each_system(FAULTS, "region"))
@pytest.mark.parametrize("system", each_system(["terngrad", "dgc"], "terngrad"))
def test_who_comes_back_has_the_weights_of_all(system: str, fault: str) -> None:
    run = played(system, FAULTS[fault])
    for name, state in run.states.items():
        weights = state.weights if "/w" in name else state.replica.weights
        assert torch.equal(weights, run.models["full"]), name


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [{"kind": "adam"}, {"kind": "sgd", "momentum": 0.9}], ids=["adam", "momentum"])
def test_what_an_optimizer_remembers_is_caught_up_too(optimizer: dict[str, Any]) -> None:
    training = experiment(training={"optimizer": optimizer, "steps": STEPS}, systems={"baseline": {}}).training
    task = quadratic_task(ROLES["tree"], STEPS, training=training)
    run = play("baseline", task, PROFILE, TOLERANT, faults=FAULTS["two"])
    replicas = [state if "/w" in role else state.replica for role, state in run.states.items()]
    assert all(torch.equal(replica.weights, run.models["full"]) for replica in replicas)
    assert len({repr(replica.optimizer) for replica in replicas}) == 1


@pytest.mark.parametrize("system", each_system(ABLE, *QUICK))
def test_a_reset_takes_less_than_patience_lasts_and_leaves_nobody_out(system: str) -> None:
    first, second = (played(system, ["reset *=* at 1s every 700ms"]) for _ in "12")
    assert first.events == second.events and first.clock_s == second.clock_s
    assert not first.of(Absent)
    assert all(state.step == STEPS for name, state in first.states.items() if "/gs" not in name)


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(ABLE))
def test_without_a_fault_only_what_servers_keep_beside_is_otherwise(system: str) -> None:
    run = played(system, [], patience_s=5.0)
    plain = play(system, task_of(system), PROFILE, OPTIONS.get(system, {}))
    assert not run.of(Absent)
    assert run.clock_s == pytest.approx(plain.clock_s, rel=0.01)
    assert counted(run) == counted(plain)
    for name, model in plain.models.items():
        assert torch.allclose(run.models[name], model, atol=3e-5), name  # what is rounded otherwise may be a T of qgt


def test_at_the_end_of_a_segment_those_left_out_are_waited_for() -> None:
    run = played("baseline", FAULTS["partition"], stops=(15, 30))
    assert all(state.step == STEPS for state in run.states.values())
    steps = counted(run)
    assert len(steps["a/w0"]) == STEPS > len(steps["b/w0"]) > 15


@pytest.mark.slow
@pytest.mark.parametrize("at_ms", range(1000, 1200, 15))
def test_the_only_worker_of_a_region_comes_back_wherever_in_a_round_it_died(at_ms: int) -> None:
    """Its server, with nobody else to wait for, is then in the midst of the round that the worker begins anew."""
    task = quadratic_task(Roles(("a", "b", "c"), 1, "a"), STEPS)
    run = play("terngrad", task, PROFILE, TOLERANT, faults=[f"kill b/w0 at {at_ms}ms for 600ms"])
    assert all(state.step == STEPS for state in run.states.values())
    for name in task.roles.workers:
        assert torch.equal(run.states[name].weights, run.models["full"]), name


@pytest.mark.slow
def test_none_waits_as_the_papers_do() -> None:
    run = play("baseline", task_of("baseline"), PROFILE, faults=FAULTS["partition"])
    assert not run.of(Absent)
    assert {len(each) for each in counted(run).values()} == {STEPS}


@pytest.mark.slow
def test_those_who_are_there_go_on_meanwhile() -> None:
    def last_s(run: Played) -> float:
        return max(event.time_s for event in run.of(StepDone) if event.node == "a/w0")

    plain_s = last_s(played("baseline", []))
    assert last_s(played("baseline", FAULTS["partition"])) < plain_s + 2 * 0.4 + 0.4  # patience, and catching up
    patient = play("baseline", task_of("baseline"), PROFILE, faults=FAULTS["partition"])
    assert last_s(patient) > plain_s + 2.0


@pytest.mark.slow
def test_of_too_few_none_are_left_out() -> None:
    faults = ["pause b/w0 at 1s for 2s", "pause b/w1 at 1s for 2s"]
    assert not played("baseline", faults, quorum=1.0).of(Absent)
    assert {event.node for event in played("baseline", faults).of(Absent)} == {"a/gs"}


@pytest.mark.parametrize("victim", each_system(["b/w1", "b/*", "c/lps", "c"], "b/w1", "c/lps"))
@pytest.mark.parametrize("system", each_system(["baseline", "terngrad", "weightgrad", "gaia", "diloco"], "baseline"))
def test_without_those_who_are_dead_for_good_the_others_end_the_run(system: str, victim: str) -> None:
    run = played(system, [f"kill {victim} at 1s"], stops=(30,))
    lost = {"b/w1": {"b/w1"}, "b/*": {"b/w0", "b/w1"}}.get(victim, {"c/w0", "c/w1"})
    for worker, steps in counted(run).items():
        assert len(steps) < STEPS if worker in lost else len(steps) == STEPS, worker


@pytest.mark.parametrize("system", each_system(["gaia", "weightgrad", "diloco"], "gaia", "diloco"))
def test_a_region_that_lost_its_copy_does_not_come_back(system: str) -> None:
    steps = counted(played(system, ["kill c/lps at 0.5s for 300ms"], stops=(30,)))
    assert len(steps["c/w0"]) < 15 and len(steps["a/w0"]) == STEPS


def test_who_waits_for_the_dead_says_so() -> None:
    with pytest.raises(RunError, match=r"the run is stuck: b/w1 is dead; .*b/lps for b/w1"):
        play("baseline", task_of("baseline"), PROFILE, faults=["kill b/w1 at 1s for 1s"])
    with pytest.raises(RunError, match=r"the run is stuck: a/gs is dead"):
        played("baseline", ["kill a/gs at 1s for 1s"])


@pytest.mark.slow
@pytest.mark.parametrize("system", ["weightgrad", "gaia", "diloco"])
@pytest.mark.parametrize("fault", ["kill b/w1 at 1s for 1s", "partition b at 1s"])
@pytest.mark.parametrize("options", [{}, TOLERANT])
def test_timers_of_its_own_do_not_keep_up_a_run_in_which_no_step_is_done(
    system: str, fault: str, options: dict[str, Any]
) -> None:
    """WeightGrad's T_global comes round and round, and Gaia looks for an acknowledgement now and then."""
    try:
        run = play(system, task_of(system), PROFILE, {**OPTIONS.get(system, {}), **options}, faults=[fault])
    except RunError as error:
        assert "the run is stuck: " in str(error)
        assert " is dead" in str(error) if "kill" in fault else " is cut" in str(error)
    else:
        assert options and run.clock_s < 2 * PATIENCE_S


@pytest.mark.parametrize("key", ["quorum", "patience_s"])
def test_what_tells_how_to_do_without_goes_with_doing_without(key: str) -> None:
    with pytest.raises(InputError, match=f"baseline: {key}: it goes with tolerance = 'leave-out'"):
        SYSTEMS["baseline"](task_of("baseline"), SYSTEMS["baseline"].options_type(**{key: 0.5}))


def test_the_order_of_arrival_is_not_kept_by_who_does_without() -> None:
    options = SYSTEMS["weightgrad"].options_type(arrival_order=True, **TOLERANT)
    with pytest.raises(InputError, match="weightgrad: arrival_order: with a tolerance"):
        SYSTEMS["weightgrad"](task_of("weightgrad"), options)


@pytest.mark.slow
def test_a_fresh_start_forgets() -> None:
    """A worker's codec has a memory, which only one that begins as it was still has."""
    stale, fresh = (played("dgc", [f"kill b/w1 restart={how} at 1s for 1s"]) for how in ("stale", "fresh"))
    assert counted(stale) == counted(fresh)
    assert not torch.equal(stale.models["full"], fresh.models["full"])


@pytest.mark.parametrize("system", ["isgq-naive", "allreduce"])
def test_who_cannot_do_without_says_so(system: str) -> None:
    task = quadratic_task(ROLES["tree"], 2)
    with pytest.raises(InputError, match=f"{system}: tolerance: it always waits for all; those that can do without: "):
        SYSTEMS[system](task, SYSTEMS[system].options_type(**TOLERANT))


def test_terngrads_server_that_alone_has_the_weights_cannot_either() -> None:
    with pytest.raises(InputError, match="localize"):
        played("terngrad", [], localize=False)


@pytest.mark.slow
def test_a_record_of_a_run_with_absences_can_be_read(small_data: None, tmp_path: Path) -> None:
    tolerant = {"tolerance": "leave-out", "patience_s": 0.05}
    it = experiment(
        systems={"baseline": tolerant, "weightgrad": {**EXCHANGING, **tolerant}},
        training={"steps": 12},
        faults=["pause us-west-1/w1 at 100ms for 300ms"],
    )
    assert [len(result.steps) for result in load(start(it, tmp_path)).results] == [12, 12]
