"""What a worker of `concord` makes of a step: its rate, how often it counts, and which it leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from concord_runs import APART, PROFILE, STEPS, TWO, task_of
from small_runs import network, play

from testbed.record.events import StepDone
from testbed.systems.concord import Concord
from testbed.wan.profile import Link


@pytest.mark.slow
def test_the_rate_goes_by_how_many_workers_a_step_is_averaged_with() -> None:
    """Prompt rounds leave it; late ones divide it by the root of three regions, and of two workers each."""

    def scales(lan_ms: float, wan_ms: float, **options: Any) -> set[float]:
        profile = network(("a", "b", "c"), Link(1000, lan_ms), Link(1000, wan_ms))
        played = play("concord", task_of(), profile, {"end": False, **options})  # then answers are prompt
        return {round(played.states[name].scale ** -2, 6) for name in played.system.task.roles.workers}

    assert scales(0.5, 2) == {1}
    assert scales(0.5, 400) == {3}
    assert scales(150, 400) == {6}
    assert scales(150, 2) == {6}  # a prompt answer is late for members who wait long for the next of their own
    assert scales(150, 400, scaled=False) == {1}


@pytest.mark.slow
def test_what_is_told_late_counts_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker makes the same steps: what all hold at the end is those, and once more what was told late."""
    monkeypatch.setattr(Concord, "_gradient", lambda system, learner, state, step: (0.0, -torch.ones(TWO.size)))

    def counted(lan_ms: float, wan_ms: float, outer_rate: float = 1.4, **options: float) -> float:
        profile = network(("a", "b", "c"), Link(1000, lan_ms), Link(1000, wan_ms))
        task, outer = task_of(), {"outer_rate": outer_rate, **options}
        options = {"error": 0.0, "end_error": 0.0, "scaled": False, **outer}
        made = play("concord", task, profile, options).models["full"] - task.initial
        assert float(made.std()) < 1e-5
        return float(made.mean()) / (STEPS * task.rate_at(0))

    assert counted(150, 400, 1.0) == pytest.approx(1)
    assert 1 < counted(0.5, 2) < 1.1, "all is prompt but the first round, of which nobody can know"
    assert 1.1 < counted(0.5, 400) < counted(150, 400) < 1.4**2
    assert 1.1 < counted(0.5, 400, outer_momentum=0.6) < 1 / (1 - 0.6), "each answer goes on in the next"


@pytest.mark.slow
def test_an_lps_of_one_worker_hears_of_it_when_there_is_something_to_average() -> None:
    """Where the WAN rests its link does: it has nobody to be averaged with meanwhile."""
    profile = network(("a", "b", "c"), Link(1000, 0.5), Link(1000, 130))

    def rounds(workers: int) -> float:
        states = play("concord", task_of(steps=72, workers=workers), profile, {"end": False, "wan_rest": 12}).states
        assert states["b/lps"].link.number >= 4
        return states["b/w0"].link.number / states["b/lps"].link.number

    assert rounds(2) > 2 * rounds(1)


@pytest.mark.slow
def test_a_straggler_goes_on_from_the_furthest_step() -> None:
    played = play("concord", task_of(), PROFILE, APART, faults=["slow b/w1 factor=10 at 0s"])
    steps = {name: 0 for name in played.system.task.roles.workers}
    for event in played.of(StepDone):
        steps[event.node] += 1
    assert steps["b/w0"] == STEPS and 2 <= steps["b/w1"] < STEPS / 2
    assert all(played.states[name].step == STEPS for name in steps)


@pytest.mark.slow
def test_a_straggler_costs_no_test_of_the_model() -> None:
    """It hands in its copy for the steps that it counts without making them."""
    seen: list[int] = []
    faults = ["slow b/w1 factor=10 at 0s"]
    play("concord", task_of(), PROFILE, APART, faults=faults, probe=lambda step, *rest: seen.append(step) or False)
    assert seen == sorted(seen) == list(range(STEPS + 1))
