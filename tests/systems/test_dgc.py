"""DGC as a system: plain SGD with the mean of sparse messages, exact sums at servers, messages of the stated sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.record.events import Sent
from testbed.roles.roles import Roles, kind_of
from testbed.systems.dgc import DGC
from testbed.wan.profile import Link
from testbed.workloads import Model
from testbed.workloads.config import Training
from testbed.workloads.models import base as models
from testbed.workloads.optimizer import SGD, Adam
from testbed.workloads.schedule import Constant

ROLES = Roles(("a", "b"), 4, "c")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
CIFARNET = models.layout(Model(name="cifarnet").build(10))
DENSE = {"sparsity": 0.0, "warmup_epochs": 0}


def trained(system: str, steps: int, options: dict[str, Any], **training: Any) -> Played:
    training = {"steps": steps, "schedule": Constant(rate=0.05)} | training
    return play(system, quadratic_task(ROLES, steps, training=Training(**training)), PROFILE, options)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), SGD(momentum=0.5, nesterov=True), Adam()])
def test_without_sparsity_it_is_the_baseline(optimizer: SGD | Adam) -> None:
    """Momentum is the workers', before they send, and not applied again after."""
    own = {**DENSE, "momentum": getattr(optimizer, "momentum", 0.0)}
    dense = trained("dgc", 5, own, optimizer=optimizer).models["full"]
    torch.testing.assert_close(dense, trained("baseline", 5, {}, optimizer=optimizer).models["full"])


def test_options_take_the_place_of_the_trainings_settings() -> None:
    task = quadratic_task(ROLES, 1, training=Training(clip_norm=2.0, optimizer=SGD(momentum=0.9), batch_size=100))
    system = DGC(task, DGC.options_type())
    codec = system.codec("worker")
    assert (codec.momentum, codec.nesterov, codec.clip_norm, codec.epoch_steps) == (0.9, False, 2.0 * 8**0.5, 10)
    options = DGC.options_type(momentum=0.5, nesterov=True, clip_norm=8.0, epoch_steps=3)
    codec = DGC(task, options).codec("worker")
    assert (codec.momentum, codec.nesterov, codec.clip_norm, codec.epoch_steps) == (0.5, True, 8.0 * 8**0.5, 3)


def test_what_is_not_sent_is_kept() -> None:
    """The weights lack just what the workers hold back of the gradients they have computed."""
    task, gradients = quadratic_task(ROLES, steps=12, rate=0.05), []

    class Noting:
        def __init__(self, worker: int) -> None:
            self.learner = task.learner(worker)

        def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
            loss, gradient = self.learner.gradient(weights, step)
            gradients.append(gradient.clone())
            return loss, gradient

    noted = replace(task, learner=Noting)
    played = play("dgc", noted, PROFILE, {"sparsity": 0.99, "warmup_epochs": 0, "momentum": 0.0})
    kept = sum(played.states[worker].memory.total for worker in ROLES.workers)
    applied = (task.initial - played.models["full"]) / 0.05 * 8
    assert float(kept.norm()) > float(applied.norm())
    torch.testing.assert_close(applied + kept, torch.stack(gradients).sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_it_converges() -> None:
    task = quadratic_task(Roles(("a", "b"), 1, "c"), steps=400, rate=0.02)
    played = play("dgc", task, PROFILE, {"sparsity": 0.9, "warmup_epochs": 0, "momentum": 0.0})
    target = torch.stack([task.learner(k).target for k in range(2)]).mean(0)  # type: ignore[attr-defined]
    start = torch.linalg.vector_norm(task.initial - target)
    assert torch.linalg.vector_norm(played.models["full"] - target) < 0.05 * start


MORE: list[dict[str, Any]] = [{"values": "float16"}, {"values": "ternary"}, {"dense_biases": True}]


@pytest.mark.parametrize("options", [{}, *(pytest.param(options, marks=pytest.mark.slow) for options in MORE)])
def test_bytes_of_a_step_after_warm_up(options: dict[str, Any]) -> None:
    """On CifarNet, where eight workers share no place by more than chance."""
    played = play("dgc", quadratic_task(ROLES, 1, layout=CIFARNET), PROFILE, {"warmup_epochs": 0} | options)
    dense = 4 * CIFARNET.size
    gradient, total, mean = (
        dense / max(event.nbytes for event in played.of(Sent) if (kind_of(event.node), kind_of(event.peer)) == hop)
        for hop in (("worker", "lps"), ("lps", "gs"), ("gs", "lps"))
    )
    if options.get("dense_biases"):
        assert 500 < gradient < 600
        return
    assert gradient > {"float16": 1000, "ternary": 2000}.get(str(options.get("values")), 750)
    assert total > 200
    assert mean > 100
