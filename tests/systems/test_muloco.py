"""MuLoCo: the paper's algorithm in plain numpy, and what all agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.record.events import LinkBytes, Sent, StepDone
from testbed.roles.roles import Kind, Roles, kind_of
from testbed.systems import Task
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE, REST, H, MU, OUTER, MOMENTUM, DECAY = 0.05, 0.4, 3, 0.8, 0.7, 0.6, 0.9
OPTIONS = {"local_steps": H, "momentum": MU, "others_rate": REST, "outer_rate": OUTER, "decay": DECAY}
MATRIX = SMALL.layers[0]  # the other one is of the last layer
STEPS = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]


def task_of(kind: Kind, steps: int) -> Task:
    training = Training(steps=steps, schedule=Constant(rate=RATE), optimizer=SGD(momentum=0.5))
    return quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, training=training)


def run(kind: Kind = "tree", steps: int = 11, **options: Any) -> Played:
    return play("muloco", task_of(kind, steps), PROFILE, OPTIONS | options, stops=[5] if steps > 5 else [])


def quantized(x: np.ndarray, bits: int) -> np.ndarray:
    """Bins over six standard deviations of each layer, each element the mean of its bin."""
    out = np.zeros_like(x)
    for layer in SMALL:
        own = x[layer.slice]
        width = 6 * own.std(ddof=1) / 2**bits or 1.0
        bins = np.clip(np.round((own - own.mean()) / width) + 2**bits // 2, 0, 2**bits - 1)
        out[layer.slice] = [own[bins == each].mean() for each in bins]
    return out


def muon(copy: np.ndarray, m: np.ndarray, u: np.ndarray, gradient: np.ndarray) -> None:
    """A step: the matrix by Newton-Schulz, all others by SGD with momentum."""
    m[:], u[:] = MU * m + gradient, 0.5 * u + gradient
    x = m[MATRIX.slice].reshape(MATRIX.shape).T
    x = x / np.linalg.norm(x)
    for a, b, c in STEPS:
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    step = REST * u
    step[MATRIX.slice] = np.sqrt(16 / 12) * x.T.ravel()
    copy -= RATE * step


def reference(kind: Kind, steps: int, bits: int) -> np.ndarray:
    """The mean of the copies after steps of Algorithm 1 in float64."""
    task = task_of(kind, steps)
    targets = np.array([task.learner(k).target.double().numpy() for k in range(4)])  # type: ignore[attr-defined]
    goals = targets.reshape(2, 2, -1).mean(1) if kind == "tree" else targets
    theta = task.initial.double().numpy()
    copies, e = [theta.copy() for _ in goals], [np.zeros_like(theta) for _ in goals]
    states = [(np.zeros_like(theta), np.zeros_like(theta)) for _ in goals]
    velocity = np.zeros_like(theta)
    for step in range(steps):
        for copy, state, goal in zip(copies, states, goals, strict=True):
            muon(copy, *state, copy - goal)
        if (step + 1) % H == 0:
            e = [DECAY * each + theta - copy for each, copy in zip(e, copies, strict=True)]
            sent = [quantized(each, bits) for each in e]
            e = [each - out for each, out in zip(e, sent, strict=True)]
            mean = quantized(np.mean(sent, axis=0), bits)
            velocity = MOMENTUM * velocity + mean
            theta = theta - OUTER * (mean + MOMENTUM * velocity)
            copies = [theta.copy() for _ in goals]
    return np.mean(copies, axis=0)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize("bits", [2, 8])
def test_it_is_the_papers_algorithm(kind: Kind, bits: int) -> None:
    found = run(kind, bits=bits).models["full"]
    torch.testing.assert_close(found, torch.from_numpy(reference(kind, 11, bits)).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_all_go_on_from_the_same_parameters_with_what_they_have_not_told(kind: Kind) -> None:
    played = run(kind, steps=9)
    copies = [played.states[name] for name in played.system.holders]  # type: ignore[attr-defined]
    assert all(torch.equal(copy.outer, copies[0].outer) and torch.equal(copy.weights, copy.outer) for copy in copies)
    assert all(torch.equal(copy.velocity, copies[0].velocity) for copy in copies)
    assert not torch.equal(copies[0].residual, copies[1].residual)
    assert not torch.equal(copies[0].optimizer.velocity, copies[1].optimizer.velocity)


def test_a_message_is_two_bits_an_element_and_four_means_a_layer() -> None:
    played = run("flat", steps=3)
    sent = {event.nbytes for event in played.of(Sent) if kind_of(event.node) == "worker"}
    assert len(sent) == 1
    assert 0 <= sent.pop() - (4 * 16 + -(-SMALL.size // 4)) < 60, "and a header, and what ends the segment"


def test_it_sends_a_small_part_of_float32() -> None:
    def wan_bytes(played: Played) -> int:
        return sum(event.wan_bytes for event in played.of(LinkBytes))

    assert wan_bytes(run()) < 0.4 * wan_bytes(play("diloco", task_of("tree", 11), PROFILE, {"local_steps": H}))


def test_the_iteration_is_charged() -> None:
    """Five steps of products of 12 by 16, 12 by 12 and 12 by 16."""
    played = run("flat", steps=2)
    flops = 5 * (4 * 12 * 12 * 16 + 2 * 12**3)
    assert played.system.update_work.gemm_flops == flops  # type: ignore[attr-defined]
    assert all(event.compute_s > 0 for event in played.of(StepDone))


def test_named_layers_are_left_to_the_other_optimizer() -> None:
    """With every matrix named, inner steps are the experiment's, and messages of 8 bits are nearly exact."""
    task = task_of("tree", 12)
    options = OPTIONS | {"others": "first", "others_rate": 1.0, "bits": 8, "decay": 1.0}
    found = play("muloco", task, PROFILE, options).models["full"]
    outer = {"local_steps": H, "outer_rate": OUTER, "outer_momentum": MOMENTUM}
    expected = play("diloco", task, PROFILE, outer).models["full"]
    assert float((found - expected).norm() / expected.norm()) < 0.02
