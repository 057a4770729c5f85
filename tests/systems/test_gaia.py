"""Gaia on the virtual fabric: what is significant, what the copies come to, and what its guards are for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.message import Message
from testbed.record.events import Guard, LinkBytes, Sent
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS, Node
from testbed.systems.gaia import Gaia
from testbed.systems.protocols.regional import WorkerState
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD, Adam, AdamW
from testbed.workloads.schedule import Constant, Cosine

ROLES = Roles(("a", "b"), 2, "c", mesh=True)
FAST = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(1000, 2))
SLOW = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(0.04, 20))  # a step's updates take longer than a step
NO_GUARDS = {"barrier_s": None, "clock_steps": None}


def drift(played: Played) -> float:
    """How far the two copies are apart, against how far training has come."""
    a, b = (played.models[f"full@{region}"] for region in "ab")
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(a - played.system.task.initial))


def gaia(profile: Any, steps: int = 40, name: str = "gaia", **options: Any) -> Played:
    return play(name, quadratic_task(ROLES, steps=steps), profile, options)


def guards(played: Played, guard: str) -> list[Guard]:
    return [event for event in played.of(Guard) if event.guard == guard]


def test_with_no_threshold_the_copies_make_the_baselines_steps() -> None:
    training = Training(steps=30, schedule=Constant(rate=0.05), optimizer=SGD(momentum=0.5))
    task = quadratic_task(ROLES, steps=30, training=training)
    everything = play("gaia", task, FAST, {"threshold": 0.0, "clock_steps": 1})
    baseline = play("baseline", task, FAST)
    # An update of the other region arrives while the next step goes on, so a copy lags by at most a step.
    torch.testing.assert_close(everything.models["full"], baseline.models["full"], rtol=0.05, atol=0.05)


def test_what_is_not_significant_waits_and_nothing_is_lost() -> None:
    played = gaia(FAST, threshold=0.05, decay="none")
    for region in "ab":
        state = played.states[f"{region}/lps"]
        # Not to the letter: the other's last update has changed the weights since.
        assert bool((state.untold.abs() <= 0.1 * state.weights.abs() + 0.02).all())
        assert bool(state.untold.any())
    a, b = (played.states[f"{region}/lps"] for region in "ab")
    # What a copy has of its own and of the other is all that both have done, but for what is untold.
    torch.testing.assert_close(a.weights - a.untold, b.weights - b.untold, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_higher_threshold_sends_less() -> None:
    def wan(played: Played) -> int:
        return sum(event.wan_bytes for event in played.of(LinkBytes))

    little, much = (wan(gaia(FAST, threshold=threshold, decay="none")) for threshold in (0.2, 0.01))
    assert little < 0.7 * much


def test_the_global_server_has_nothing_to_do() -> None:
    sent = [event for event in gaia(FAST).of(Sent) if "c/gs" in (event.node, event.peer)]
    assert all(event.messages <= 1 for event in sent)  # the marker at the end


def test_the_threshold_falls_with_the_steps_or_the_rate() -> None:
    system = gaia(FAST, steps=1).system
    assert isinstance(system, Gaia)
    assert system._threshold(0) == pytest.approx(0.01)
    assert system._threshold(3) == pytest.approx(0.005)


def test_a_threshold_that_goes_with_the_rate_is_no_higher_while_that_rises() -> None:
    """T0 belongs to the highest rate, not to the first one of a warm-up."""
    training = Training(steps=100, schedule=Cosine(rate=0.1, warmup_steps=10))
    system = SYSTEMS["gaia"](quadratic_task(ROLES, 100, training=training), SYSTEMS["gaia"].options_type(decay="rate"))
    assert isinstance(system, Gaia)
    thresholds = [system._threshold(step) for step in range(100)]
    assert max(thresholds) == pytest.approx(0.01) == thresholds[9] and thresholds[0] == pytest.approx(0.001)


@pytest.mark.parametrize("optimizer", [Adam(), AdamW(weight_decay=0.1)])
@pytest.mark.parametrize("regions", [("a", "b"), ("a", "b", "d", "e")])
def test_regions_steps_add_up_to_one_with_an_optimizer_that_no_scale_changes(
    optimizer: Any, regions: tuple[str, ...]
) -> None:
    """Not to as many steps as there are regions. Copies that lag move a little less."""
    training = Training(steps=10, schedule=Constant(rate=0.01), optimizer=optimizer)
    task = quadratic_task(Roles(regions, 2, "c", mesh=True), steps=10, training=training)
    near = network((*regions, "c"), lan=Link(1e5, 0.01), wan=Link(1e5, 0.01))
    alone, both = (
        play(system, task, near, options).models["full"] - task.initial
        for system, options in (("baseline", {}), ("gaia", {"threshold": 0.0, "clock_steps": 1}))
    )
    assert 0.75 < float(both.norm() / alone.norm()) < 1.1


@pytest.mark.slow
def test_without_the_barrier_copies_drift_apart_on_a_slow_wan() -> None:
    free = gaia(SLOW, threshold=0.0, **NO_GUARDS)
    held = gaia(SLOW, threshold=0.0, barrier_s=0.05, clock_steps=None)
    assert not guards(free, "barrier")
    assert guards(held, "barrier")
    assert all(event.held_s is None or event.held_s > 0 for event in guards(held, "barrier"))
    # At the end all updates have arrived: what tells is how the gradients went, computed at copies far apart.
    ideal = play("baseline", quadratic_task(ROLES, steps=40), SLOW).models["full"]
    away = [torch.linalg.vector_norm(played.models["full"] - ideal) for played in (free, held)]
    assert away[1] < 0.5 * away[0]


class Halting(Gaia):
    """Region a's gradients take 4 s longer."""

    name = ""

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        async for step in node.steps(state):
            loss, gradient = learner.gradient(state.weights, step)
            await node.sleep(4.0 if node.region == "a" else 0.05)
            await node.send(node.lps, Message("gradient", step, self.floats.encode(gradient)))
            state.weights = self.floats.decode((await node.recv(node.lps)).buffers)
            node.step_done(step, loss)


@pytest.mark.slow
def test_without_the_clock_the_fast_region_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS._found, "halting", Halting)
    free = gaia(FAST, name="halting", threshold=0.0, **NO_GUARDS)
    held = gaia(FAST, name="halting", threshold=0.0, barrier_s=None, clock_steps=2)
    assert not guards(free, "clock")
    assert {event.node for event in guards(held, "clock")} == {"b/lps"}

    ideal = play("baseline", quadratic_task(ROLES, steps=40), FAST).models["full"]
    away = [torch.linalg.vector_norm(played.models["full"] - ideal) for played in (free, held)]
    assert away[1] < 0.5 * away[0]
