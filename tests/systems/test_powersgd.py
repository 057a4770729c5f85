"""PowerSGD: the paper's two algorithms in plain numpy, what is conserved, and bytes counted on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.layout import Layout
from testbed.record.events import Sent
from testbed.roles.roles import Kind, Roles, kind_of
from testbed.systems import SYSTEMS, Task
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
WAYS: dict[str, tuple[str, Kind]] = {
    "tree": ("powersgd", "tree"),
    "flat": ("powersgd", "flat"),
    "ring": ("powersgd-ring", "ring"),
}
RATE, MOMENTUM = 0.05, 0.9


def task_of(kind: Kind, steps: int, layout: Layout = SMALL) -> Task:
    training = Training(steps=steps, schedule=Constant(rate=RATE), optimizer=SGD(momentum=MOMENTUM))
    return quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, layout=layout, training=training)


def run(way: str, steps: int = 6, **options: Any) -> Played:
    system, kind = WAYS[way]
    return play(system, task_of(kind, steps), PROFILE, options, stops=[2])


def gram_schmidt(matrix: np.ndarray) -> np.ndarray:
    """As the paper does it (section 3)."""
    found = matrix.copy()
    for k in range(found.shape[1]):
        found[:, k] /= np.linalg.norm(found[:, k])
        for later in range(k + 1, found.shape[1]):
            found[:, later] -= (found[:, k] @ found[:, later]) * found[:, k]
    return found


def reference(rank: int, steps: int, queries: np.ndarray) -> np.ndarray:
    """Weights after steps of Algorithms 1 and 2 in float64, with heavy-ball momentum on the mean."""
    task = task_of("tree", steps)
    targets = [task.learner(k).target.double().numpy() for k in range(4)]  # type: ignore[attr-defined]
    x = task.initial.double().numpy()
    velocity, errors = np.zeros_like(x), [np.zeros_like(x) for _ in targets]
    q: dict[str, np.ndarray] = {}
    for layer in SMALL:
        if not layer.bias:
            columns = layer.shape[1]
            q[layer.name], queries = (
                queries[: columns * rank].reshape(columns, rank),
                queries[columns * rank :],
            )
    for _ in range(steps):
        deltas = [x - target + error for target, error in zip(targets, errors, strict=True)]
        mean = np.zeros_like(x)
        for layer in SMALL:
            here = layer.slice
            if layer.bias:
                mean[here] = np.mean([delta[here] for delta in deltas], axis=0)
                for error in errors:
                    error[here] = 0
                continue
            matrices = [delta[here].reshape(layer.shape) for delta in deltas]
            p = gram_schmidt(np.mean([matrix @ q[layer.name] for matrix in matrices], axis=0))
            q[layer.name] = np.mean([matrix.T @ p for matrix in matrices], axis=0)
            mean[here] = (p @ q[layer.name].T).reshape(-1)
            for error, delta in zip(errors, deltas, strict=True):
                error[here] = delta[here] - mean[here]
        velocity = MOMENTUM * velocity + mean
        x = x - RATE * velocity
    return x


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_it_is_the_papers_algorithm(way: str, rank: int) -> None:
    system, kind = WAYS[way]
    first = SYSTEMS[system](task_of(kind, 6), SYSTEMS[system].options_type(rank=rank)).initial_state("a/w0")
    found = run(way, rank=rank)
    expected = torch.from_numpy(reference(rank, 6, first.query.double().numpy())).float()
    torch.testing.assert_close(found.models["full"], expected, rtol=1e-4, atol=1e-4)
    states = [found.states[worker] for worker in found.system.task.roles.workers]
    assert all(torch.equal(states[0].weights, state.weights) for state in states)
    assert all(torch.equal(states[0].query, state.query) for state in states)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost_and_nothing_is_sent_twice(way: str) -> None:
    """What was applied and what workers hold back are together the gradients that they computed."""
    system, kind = WAYS[way]
    plain = quadratic_task(Roles(("a", "b"), 2, "c", kind), steps=9, rate=RATE)
    computed = torch.zeros(SMALL.size)

    class Noting:
        def __init__(self, worker: int) -> None:
            self.learner = plain.learner(worker)

        def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
            loss, gradient = self.learner.gradient(weights, step)
            computed.add_(gradient)
            return loss, gradient

    played = play(system, replace(plain, learner=Noting), PROFILE, {"rank": 1})
    kept = sum(played.states[worker].error for worker in plain.roles.workers)
    assert float(kept.norm()) > 0.5 * float(plain.initial.norm())
    applied = (plain.initial - played.models["full"]) / RATE * 4
    torch.testing.assert_close(applied + kept, computed, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_of_full_rank_it_is_the_baseline(way: str) -> None:
    """No P and Q are smaller than the matrix then, and all layers go as they are."""
    expected = play("baseline", task_of("tree", 6), PROFILE).models["full"]
    torch.testing.assert_close(run(way, rank=100).models["full"], expected, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_less_than_full_rank_comes_through() -> None:
    """Where P has dependent columns, as Gram-Schmidt would not see, they stay orthonormal."""
    layout = Layout.of([("one.weight", (8, 8))])
    task = task_of("tree", 1, layout)
    ones = torch.ones(64)
    task = replace(task, initial=ones, learner=lambda worker: _Constant(ones * (worker + 1)))
    found = play("powersgd", task, PROFILE, {"rank": 2})
    torch.testing.assert_close(found.models["full"], ones - RATE * 2.5, rtol=0, atol=1e-5)


class _Constant:
    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient

    def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
        return 1.0, self._gradient.clone()


def test_bytes_of_a_step() -> None:
    """P, vectors and Q of two matrices [16, 12] and [5, 16], in float32, and their headers."""
    p, q = 4 * (2 * (16 + 5) + 16 + 5), 4 * 2 * (12 + 16)
    found = play("powersgd", task_of("tree", 1), PROFILE, {"rank": 2})
    for event in found.of(Sent):
        if kind_of(event.peer) != "worker" and event.messages > 1:
            frames = event.nbytes - p - q
            assert 0 < frames < 60, (event.node, event.peer)
