"""EF21-SGDM: the paper's algorithm in plain numpy, and what workers and servers agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.codecs.base import Key
from testbed.codecs.changes import Changes
from testbed.errors import CodecError
from testbed.layout import Layout
from testbed.record.events import Sent
from testbed.roles.roles import Kind, Roles, kind_of
from testbed.systems import Task
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE = 0.05


def task_of(kind: Kind, steps: int, rate: float = RATE) -> Task:
    training = Training(steps=steps, schedule=Constant(rate=rate), optimizer=SGD(momentum=0.5))
    return quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, training=training)


def run(kind: Kind = "tree", steps: int = 12, **options: Any) -> Played:
    return play("ef21", task_of(kind, steps), PROFILE, options, stops=[5])


def reference(steps: int, kept: float, eta: float) -> np.ndarray:
    """Weights after steps of Algorithm 1 in float64."""
    task = task_of("tree", steps)
    x = task.initial.double().numpy()
    targets = [task.learner(k).target.double().numpy() for k in range(4)]  # type: ignore[attr-defined]
    v = [x - target for target in targets]
    g = [each.copy() for each in v]
    count = int(np.ceil(kept * x.size))
    for _ in range(steps):
        x = x - RATE * np.mean(g, axis=0)
        for i, target in enumerate(targets):
            v[i] = (1 - eta) * v[i] + eta * (x - target)
            largest = np.argsort(-np.abs(v[i] - g[i]), kind="stable")[:count]
            g[i][largest] = v[i][largest]
    return x


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kept", "momentum"), [(0.05, 0.9), (0.2, 0.0)])
def test_it_is_the_papers_algorithm(kind: Kind, kept: float, momentum: float) -> None:
    found = run(kind, kept=kept, momentum=momentum)
    expected = torch.from_numpy(reference(12, kept, 1 - momentum)).float()
    torch.testing.assert_close(found.models["full"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("values", ["float32", "float16", "ternary"])
def test_all_know_the_mean_of_all_estimates(values: str) -> None:
    """However values are rounded: what a worker has sent is what it takes for sent."""
    played = run(kept=0.05, values=values)
    states = [played.states[worker] for worker in played.system.task.roles.workers]
    mean = torch.stack([state.memory.estimate for state in states]).mean(0)
    for state in states:
        assert torch.equal(state.mean, states[0].mean)
        torch.testing.assert_close(state.mean, mean, rtol=1e-4, atol=1e-5)


def test_whole_and_without_momentum_it_is_plain_sgd() -> None:
    played = run(kept=1.0, momentum=0.0)
    training = Training(steps=12, schedule=Constant(rate=RATE))
    plain = quadratic_task(Roles(("a", "b"), 2, "c"), 12, training=training)
    expected = play("baseline", plain, PROFILE).models["full"]
    torch.testing.assert_close(played.models["full"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_converges_to_the_point_that_the_baseline_finds() -> None:
    """What EF21 is for: one element in twenty, different data at each worker, and no error that stays."""
    task = task_of("tree", 800, rate=0.015)  # of a rate far above kept / 2 it diverges (theorem 1's bound)
    goal = torch.stack([task.learner(k).target for k in range(4)]).mean(0)  # type: ignore[attr-defined]
    found = play("ef21", task, PROFILE, {"kept": 0.05}).models["full"]
    assert torch.linalg.vector_norm(found - goal) < 0.01 * torch.linalg.vector_norm(task.initial - goal)


def test_only_the_first_message_is_whole() -> None:
    def sent(steps: int) -> int:
        played = run(steps=steps, kept=0.01) if steps > 5 else play("ef21", task_of("tree", steps), PROFILE)
        return sum(e.nbytes for e in played.of(Sent) if kind_of(e.node) == "worker") // 4

    first, later = sent(1), (sent(5) - sent(1)) / 4
    assert 3.2 * SMALL.size < first < 4.4 * SMALL.size
    assert later < 0.08 * first + 60, "three elements of 293, and headers"


def test_nan_is_refused_and_changes_nothing() -> None:
    codec = Changes(Layout.of([("model", (40,))]), 0.1, "float32", 0.9)
    memory = codec.start()
    codec.encode(torch.ones(40), Key(0, 0, 0), memory)
    before = memory.momentum.clone()
    with pytest.raises(CodecError, match="layer model: NaN"):
        codec.encode(torch.full((40,), float("nan")), Key(0, 0, 1), memory)
    assert torch.equal(memory.momentum, before)
