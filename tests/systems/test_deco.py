"""DeCo-SGD: the paper's update in plain numpy, what is chosen for which link, and that the choice follows the link."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import SMALL, Played, each_system, network, play, quadratic_task

from testbed.record.events import StepDone
from testbed.roles.roles import Kind, Roles
from testbed.systems.deco import LEAST, choose, phi
from testbed.wan.profile import Link

RATE, KEPT, STEP_S = 0.05, 0.1, 0.05


def run(wan: Link = Link(100, 20), kind: Kind = "tree", steps: int = 16, **options: Any) -> Played:  # noqa: B008
    task = quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, rate=RATE)
    stops = options.pop("stops", [7])
    given = {"every": 4, "kept": KEPT} | options
    return play("deco", task, network(("a", "b", "c"), Link(1000, 1), wan), given, stops=stops)


def reference(steps: int, chosen: dict[int, tuple[int, float]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Weights and residuals of four workers, with (tau, delta) as chosen after some steps; in float64.

    A choice counts once the mean of its step is applied.
    """
    task = quadratic_task(Roles(("a", "b"), 2, "c"), steps, rate=RATE)
    targets = [task.learner(k).target.double().numpy() for k in range(4)]  # type: ignore[attr-defined]
    x, e, means, applied = task.initial.double().numpy(), [np.zeros(SMALL.size) for _ in targets], [], 0
    tau, kept = 0, KEPT
    for step in range(steps):
        sent = []
        for k, target in enumerate(targets):
            e[k] = e[k] + x - target
            count = int(np.ceil(round(kept * SMALL.size, 6)))
            largest = np.argsort(-np.abs(e[k]), kind="stable")[:count]
            sent.append(np.where(np.isin(np.arange(SMALL.size), largest), e[k], 0))
            e[k] = e[k] - sent[k]
        means.append(np.mean(sent, axis=0))
        while applied <= step - (0 if step + 1 == steps else tau):
            x = x - RATE * means[applied]
            tau, kept = chosen.get(applied, (tau, kept))
            applied += 1
    return x, e


@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_without_a_delay_it_is_error_feedback(kind: Kind) -> None:
    """Before anything is chosen, in steps 0 and 1."""
    played = run(kind=kind, steps=2, stops=[])
    x, residuals = reference(2, {})
    torch.testing.assert_close(played.models["full"], torch.from_numpy(x).float(), rtol=1e-4, atol=1e-4)
    for k, worker in enumerate(played.system.task.roles.workers):
        found = played.states[worker].residual
        torch.testing.assert_close(found, torch.from_numpy(residuals[k]).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", each_system(["tree", "flat"], "tree"))
@pytest.mark.parametrize("stops", [pytest.param([], marks=pytest.mark.slow), [5, 9]])
def test_a_mean_is_applied_so_many_steps_later_as_was_chosen(
    kind: Kind, stops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {1: (3, 0.2), 3: (3, 0.3), 7: (1, 0.5), 11: (2, 0.3), 15: (2, 0.4)}
    made = iter(chosen.values())
    monkeypatch.setattr("testbed.systems.deco.choose", lambda *link: next(made))
    found = run(kind=kind, stops=stops).models["full"]
    x, _ = reference(16, chosen)
    torch.testing.assert_close(found, torch.from_numpy(x).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", each_system(["tree", "flat"], "flat"))
def test_all_workers_stay_equal_and_none_is_behind_at_the_end(kind: Kind) -> None:
    played = run(Link(1, 200), kind)
    workers = [played.states[name] for name in played.system.task.roles.workers]
    assert all(torch.equal(worker.weights, workers[0].weights) for worker in workers)
    assert {worker.applied for worker in workers} == {16}
    assert {(worker.tau, worker.kept) for worker in workers} == {(workers[0].tau, workers[0].kept)}
    assert workers[0].tau >= 4, "an empty message takes four steps"


@pytest.mark.slow
def test_nobody_waits_once_it_has_chosen() -> None:
    ends = [event.time_s for event in run(Link(2, 200), steps=40).of(StepDone) if event.node == "a/w0"]
    lengths = [after - before for before, after in pairwise(ends)]
    assert min(lengths[:1]) > 4 * STEP_S, "the first steps wait for a round trip each"
    middle = sorted(lengths[12:36])[:-4]  # but where a segment ends, and where a delay goes down
    assert max(middle) < 1.25 * STEP_S


@pytest.mark.slow
def test_the_choice_follows_the_link() -> None:
    def chosen(wan: Link) -> tuple[int, float]:
        state = run(wan, steps=24).states["a/w0"]
        return state.tau, state.kept

    near, far, narrow = chosen(Link(100, 20)), chosen(Link(100, 300)), chosen(Link(0.05, 20))
    assert near == (1, 1.0)
    assert far[0] >= 6 and far[1] == 1.0
    assert narrow[1] < 0.5


@given(st.floats(1e-3, 10), st.floats(0, 10), st.floats(0, 1e3), st.floats(0.5, 1), st.integers(1, 60))
def test_what_is_chosen_keeps_the_way_free_or_is_the_most_that_can_be(
    step_s: float, empty_s: float, whole_s: float, share: float, most: int
) -> None:
    def part(tau: int) -> float:
        """The largest delta with which nobody waits."""
        return min(1.0, step_s / max(share * whole_s, 1e-12), (tau * step_s - empty_s) / max(whole_s, 1e-12))

    tau, kept = choose(step_s, empty_s, whole_s, share, most)
    able = [other for other in range(1, most + 1) if part(other) >= LEAST]
    if able:
        assert kept == pytest.approx(part(tau))
        assert all(phi(tau, kept) <= phi(other, part(other)) * (1 + 1e-9) for other in able)
    else:
        assert tau == most and LEAST <= kept <= 1


def test_noise_grows_exponentially_with_staleness() -> None:
    assert phi(0, 1.0) == phi(9, 1.0) == 0.0
    assert phi(0, 0.25) == pytest.approx(3.0)
    assert phi(4, 0.5) / phi(3, 0.5) == phi(3, 0.5) / phi(2, 0.5) == pytest.approx(4 / 3)
