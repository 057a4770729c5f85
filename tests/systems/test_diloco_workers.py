"""DiLoCo between workers: the papers' algorithm, what a region sends, and what all agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.errors import InputError
from testbed.record.events import Exchange, LinkBytes
from testbed.roles.roles import Kind, Roles
from testbed.wan.profile import Link

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE, H, OUTER, MOMENTUM = 0.05, 4, 0.7, 0.9


def run(kind: Kind = "tree", steps: int = 14, workers: int = 2, **options: Any) -> Played:
    task = quadratic_task(Roles(("a", "b"), workers, "c", kind), steps, rate=RATE)
    return play("diloco-workers", task, PROFILE, {"local_steps": H} | options, stops=[5])


def reference(steps: int) -> np.ndarray:
    """The mean of the workers' parameters after steps of the paper's Algorithm 1 (2023), in float64."""
    task = quadratic_task(Roles(("a", "b"), 2, "c"), steps, rate=RATE)
    goals = [task.learner(k).target.double().numpy() for k in range(4)]  # type: ignore[attr-defined]
    theta = task.initial.double().numpy()
    copies, velocity = [theta.copy() for _ in goals], np.zeros_like(theta)
    for step in range(steps):
        copies = [copy - RATE * (copy - goal) for copy, goal in zip(copies, goals, strict=True)]
        if (step + 1) % H == 0:
            mean = np.mean([theta - copy for copy in copies], axis=0)
            velocity = MOMENTUM * velocity + mean
            theta = theta - OUTER * (mean + MOMENTUM * velocity)
            copies = [theta.copy() for _ in goals]
    return np.mean(copies, axis=0)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_it_is_the_papers_algorithm(kind: Kind) -> None:
    expected = torch.from_numpy(reference(14)).float()
    torch.testing.assert_close(run(kind).models["full"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize("coding", ["int8", pytest.param("int4", marks=pytest.mark.slow), "e3m0"])
def test_all_agree_to_the_last_bit_whatever_the_coding(kind: Kind, coding: str) -> None:
    played = run(kind, steps=12, coding=coding, outer_momentum=0.5)
    workers = [played.states[name] for name in played.system.task.roles.workers]
    assert all(torch.equal(worker.weights, workers[0].outer) for worker in workers)
    exact = run(kind, steps=12, outer_momentum=0.5).models["full"]
    apart = torch.linalg.vector_norm(played.models["full"] - exact) / torch.linalg.vector_norm(exact)
    assert 0 < float(apart) < {"int8": 0.02, "int4": 0.3, "e3m0": 0.3}[coding]
    assert [event.included for event in played.of(Exchange)] == [["a", "b"]] * 3


def test_a_region_sends_one_message_and_as_many_bytes_as_if_it_were_a_worker() -> None:
    def wan_bytes(played: Played) -> int:
        return sum(event.wan_bytes for event in played.of(LinkBytes))

    task = quadratic_task(Roles(("a", "b"), 2, "c"), 14, rate=RATE)
    regions = play("diloco", task, PROFILE, {"local_steps": H}, stops=[5])
    assert wan_bytes(run("tree")) == pytest.approx(wan_bytes(regions), rel=1e-3), "what they are called differs"
    assert wan_bytes(run("flat")) > 1.9 * wan_bytes(regions)


def test_fragments_take_turns_while_training_goes_on() -> None:
    waiting = run(steps=24, local_steps=6)
    streaming = run(steps=24, local_steps=6, fragments=2, overlap_steps=2, mixing=0.5)
    assert len(streaming.of(Exchange)) == 2 * len(waiting.of(Exchange))
    assert streaming.clock_s < waiting.clock_s - 0.05, "four round trips of 20 ms less"


def test_it_waits_for_all() -> None:
    with pytest.raises(InputError, match="diloco-workers: tolerance: it always waits for all"):
        run(tolerance="leave-out")
