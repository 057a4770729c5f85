"""WGT, BGT and QGT as systems: thresholds in the paper's units, residuals kept, sums exact over both topologies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.codecs import Key
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS
from testbed.systems.protocols.codec_system import WorkerState
from testbed.wan.profile import Link

TREE = Roles(("a", "b"), 4, "c")
FLAT = replace(TREE, kind="flat")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
THRESHOLDED = ["wgt", "bgt", "qgt"]


def thresholded(system: str, steps: int, roles: Roles = TREE, rate: float = 0.05, **options: Any) -> Played:
    return play(system, quadratic_task(roles, steps, rate), PROFILE, options)


@pytest.mark.parametrize("name", ["bgt", "qgt"])
def test_the_mean_of_those_who_are_there_is_sent_as_it_is(name: str) -> None:
    """It is no multiple of what the mean of all is one of."""
    options = SYSTEMS[name].options_type(threshold=0.01, tolerance="leave-out")
    server = SYSTEMS[name](quadratic_task(TREE, 1), options).codec("gs")
    mean = torch.zeros(server.layout.size)
    mean[3] = 0.08 / 5  # one of five workers has sent T times all eight of them
    assert torch.equal(server.decode(server.encode(mean, Key(0, 0, 0))), mean)


def residual(played: Played, worker: str) -> torch.Tensor:
    state = played.states[worker]
    assert isinstance(state, WorkerState)
    return state.memory.residual


@pytest.mark.parametrize(("system", "limit"), [("wgt", None), ("bgt", 1), ("qgt", 255)])
def test_a_step_is_the_papers(system: str, limit: int | None) -> None:
    """T is for a worker's share of the mean, a gradient divided by N; weights move by the mean of what is sent."""
    threshold = 0.11
    task = quadratic_task(TREE, steps=1, rate=0.5)
    played = play(system, task, PROFILE, {"threshold": threshold})
    total = torch.zeros(task.layout.size, dtype=torch.float64)
    for number, worker in enumerate(TREE.workers):
        share = task.learner(number).gradient(task.initial, 0)[1].double() / 8
        levels = (share.abs() / threshold).floor()
        sent = share * (levels > 0) if limit is None else share.sign() * levels.clamp(max=limit) * threshold
        total += sent
        torch.testing.assert_close(residual(played, worker), (8 * (share - sent)).float(), rtol=1e-5, atol=1e-6)
        assert 0 < int((sent != 0).sum()) < task.layout.size
    torch.testing.assert_close(played.models["full"], (task.initial - 0.5 * total).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("system", THRESHOLDED)
def test_flat_and_tree_train_alike(system: str) -> None:
    """In multiples, sums are of integers: they are the same to the last bit in whatever order they are made."""
    tree, flat = (thresholded(system, 20, roles, threshold=0.03).models["full"] for roles in (TREE, FLAT))
    if system == "wgt":
        torch.testing.assert_close(tree, flat)
    else:
        assert torch.equal(tree, flat)


def distance_left(played: Played) -> float:
    """From the optimum, as a fraction of where the run started."""
    task = played.system.task
    target = torch.stack([task.learner(k).target for k in range(8)]).mean(0)  # type: ignore[attr-defined]
    left, start = (torch.linalg.vector_norm(w - target) for w in (played.models["full"], task.initial))
    return float(left / start)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "threshold"), [("wgt", 0.02), ("bgt", 0.5), ("qgt", 0.02)])
def test_it_converges(system: str, threshold: float) -> None:
    assert distance_left(thresholded(system, 150, threshold=threshold)) < 0.05


@pytest.mark.slow
def test_bgt_cannot_follow_gradients_that_stay_above_the_threshold() -> None:
    """Its known weakness: +-T is all it sends, and the rest piles up."""
    short, long = (thresholded("bgt", steps, threshold=0.02) for steps in (50, 150))
    assert distance_left(long) > 0.2
    worker = TREE.workers[0]
    assert residual(long, worker).abs().max() > 2 * residual(short, worker).abs().max()


@pytest.mark.parametrize("system", THRESHOLDED)
def test_below_the_threshold_nothing_moves(system: str) -> None:
    played = thresholded(system, 2, threshold=1e6)
    assert torch.equal(played.models["full"], played.system.task.initial)
    assert all(bool((residual(played, worker) != 0).all()) for worker in TREE.workers)
