"""One worker in one region with the baseline is plain training, parameter by parameter, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import experiment, play
from torch.nn import functional

from testbed.experiment.assembly import Assembly
from testbed.workloads import Model

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "sgd": ({"kind": "sgd"}, lambda parameters: torch.optim.SGD(parameters, 0.1)),
    "momentum": ({"kind": "sgd", "momentum": 0.9}, lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)),
    "adam": ({"kind": "adam"}, lambda parameters: torch.optim.Adam(parameters, 0.1)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("server_region", ["us-east-1", "us-west-1"], ids=["same region", "across the WAN"])
def test_tiny(small_data: None, optimizer: str, server_region: str) -> None:
    compare_with_plain_training("tiny", optimizer, steps=7, server_region=server_region)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_cifarnet(small_data: None, optimizer: str) -> None:
    compare_with_plain_training("cifarnet", optimizer, steps=3, server_region="us-east-1")


def compare_with_plain_training(model: str, optimizer: str, steps: int, server_region: str) -> None:
    options, make_optimizer = OPTIMIZERS[optimizer]
    training: dict[str, Any] = {"steps": steps, "batch_size": 8, "optimizer": options, "weight_decay": 1e-3}
    topology = {"regions": ["us-east-1"], "workers_per_region": 1, "server_region": server_region}
    it = experiment(topology=topology, model={"name": model}, training=training, systems={"baseline": {}})
    task = Assembly(it).task(seed=5)
    played = play("baseline", task, it.plan.profile, stops=[2])

    module = Model(name=model).build(10)
    torch.nn.utils.vector_to_parameters(task.initial.clone(), module.parameters())
    plain = make_optimizer(module.parameters())
    for step in range(steps):
        images, labels = task.learner(0).batch(step)
        plain.zero_grad()
        (functional.cross_entropy(module(images), labels)).backward()
        for parameter in module.parameters():
            parameter.grad.add_(parameter.detach(), alpha=1e-3)  # weight decay
        plain.param_groups[0]["lr"] = 0.1 * (1 - step / steps) ** 0.5
        plain.step()

    trained = played.models["full"]
    for layer, parameter in zip(task.layout, module.parameters(), strict=True):
        assert torch.equal(trained[layer.slice].view(layer.shape), parameter.detach()), layer.name
    assert not torch.equal(trained, task.initial)
