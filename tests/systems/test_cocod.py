"""CoCoD-SGD: the paper's algorithm in plain numpy, no step lost, and nobody who waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.record.events import StepDone
from testbed.roles.roles import Kind, Roles
from testbed.systems import Task
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE, MOMENTUM, H = 0.05, 0.6, 3


def task_of(kind: Kind, steps: int) -> Task:
    training = Training(steps=steps, schedule=Constant(rate=RATE), optimizer=SGD(momentum=MOMENTUM))
    return quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, training=training)


def run(kind: Kind = "tree", steps: int = 14, **options: Any) -> Played:
    return play("cocod", task_of(kind, steps), PROFILE, {"local_steps": H} | options, stops=[4])


def reference(kind: Kind, steps: int) -> list[np.ndarray]:
    """The copies after steps of Algorithm 1 in float64; momentum stays with each."""
    task = task_of(kind, steps)
    targets = np.array([task.learner(k).target.double().numpy() for k in range(4)])  # type: ignore[attr-defined]
    goals = targets.reshape(2, 2, -1).mean(1) if kind == "tree" else targets
    copies = [task.initial.double().numpy().copy() for _ in goals]
    velocities = [np.zeros_like(copy) for copy in copies]
    begun, mean = [copy.copy() for copy in copies], copies[0].copy()
    for step in range(steps):
        for copy, velocity, goal in zip(copies, velocities, goals, strict=True):
            velocity[:] = MOMENTUM * velocity + copy - goal
            copy -= RATE * velocity
        if (step + 1) % H == 0:
            copies = [mean + (copy - start) for copy, start in zip(copies, begun, strict=True)]
            begun, mean = [copy.copy() for copy in copies], np.mean(copies, axis=0)
    return copies


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_it_is_the_papers_algorithm(kind: Kind) -> None:
    played = run(kind)
    expected = reference(kind, 14)
    for name, copy in zip(played.system.holders, expected, strict=True):  # type: ignore[attr-defined]
        found = played.states[name].weights
        torch.testing.assert_close(found, torch.from_numpy(copy).float(), rtol=1e-4, atol=1e-4)
    mean = torch.from_numpy(np.mean(expected, axis=0)).float()
    torch.testing.assert_close(played.models["full"], mean, rtol=1e-4, atol=1e-4)


def test_no_step_is_lost_and_none_counts_twice() -> None:
    """The mean of the copies moves by the mean of all steps that are made, however late copies hear of each other.

    With losses of one curvature the mean of gradients is the gradient of the mean, so that this is the baseline's path.
    """
    together = play("baseline", task_of("tree", 14), PROFILE).models["full"]
    for kind in ("tree", "flat"):
        torch.testing.assert_close(run(kind).models["full"], together, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_nobody_waits_while_the_steps_take_longer_than_the_mean(kind: Kind) -> None:
    steps = [event for event in run(kind, steps=24).of(StepDone) if event.node == "a/w0"]
    assert sum(step.wan_s or 0.0 for step in steps) == 0.0
    slow = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 600))
    waiting = play("cocod", task_of(kind, 24), slow, {"local_steps": H})
    assert sum(step.wan_s or 0.0 for step in waiting.of(StepDone) if step.node == "a/w0") > 1.0
