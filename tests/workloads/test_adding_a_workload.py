"""docs/add-a-workload.md: the files it shows run as they stand, and are as short as it says."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import experiment, start
from torch import nn

from testbed import plugins
from testbed.record.reader import Result, load
from testbed.workloads import Workload
from testbed.workloads.config import Training
from testbed.workloads.data import base as data
from testbed.workloads.models import base as models

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
TABLES = {name: tomllib.loads(text) for name, text in re.findall(r"```toml\n# (\w+\.toml)\n(.*?)```", PAGE, re.DOTALL)}

pytestmark = pytest.mark.usefixtures("own_names", "data_root")


@pytest.fixture
def load_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a file of the page to a folder of its own, and load it as a plug-in, for this test."""
    monkeypatch.setattr(plugins, "_loaded", {})

    def loaded(name: str) -> None:
        assert FILES[name].count("\n") <= 25 + 5 * (name == "waves.py")
        path = tmp_path / "elsewhere" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILES[name])
        plugins.load([f"./{name}"], path.parent)

    return loaded


def played(folder: Path, **parts: Any) -> Result:
    training = {"steps": 120, "batch_size": 64, "schedule": {"kind": "constant", "rate": 0.02}}
    training["optimizer"] = {"kind": "adam"}
    parts = {"training": training, "run": {"checkpoint_steps": 120, "eval_images": 500}, **parts}
    it = experiment(systems={"baseline": {}}, **parts)
    return load(start(it, folder)).results[0]


@pytest.mark.slow
def test_a_model_with_its_data_in_one_short_file(load_page: Any, tmp_path: Path) -> None:
    load_page("mine.py")
    result = played(tmp_path, **TABLES["mine.toml"])
    assert result.evaluations["accuracy"].iloc[-1] > 0.7
    assert np.load(result.folder / "model.npz")["full/0.weight"].shape == (48, 2)


@pytest.mark.slow
def test_a_loss_and_a_metric_of_ones_own(load_page: Any, tmp_path: Path) -> None:
    load_page("heat.py")
    result = played(tmp_path, model={"name": "linear"}, data={"dataset": "heat"}, **TABLES["heat.toml"])
    tests = result.evaluations
    assert tests["accuracy"].isna().all()
    assert tests["error"].iloc[-1] < 21


def test_data_made_as_it_is_asked_for(load_page: Any) -> None:
    load_page("waves.py")
    waves = data.load("waves")
    index = np.array([7, 12])
    inputs, targets = waves.train_batch(index, np.random.default_rng(1))
    again, _ = waves.train_batch(index, np.random.default_rng(1))
    assert torch.equal(inputs, again)
    assert not torch.equal(inputs, waves.train_batch(index)[0])
    assert (inputs.shape, targets.tolist()) == ((2, 50), [2, 2])
    assert waves.loss(torch.zeros(2, 5), targets).item() == pytest.approx(np.log(5))


def library(name: str, **members: Any) -> ModuleType:
    """A library in the place of one that is not installed here."""
    module = ModuleType(name)
    vars(module).update(members)
    return module


@pytest.mark.slow
def test_a_network_of_torchvisions_kind(load_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def resnet18(*, weights: object = None, progress: bool = True, num_classes: int = 1000) -> nn.Module:
        body = (nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1))
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(8, num_classes))

    made = library("torchvision", models=SimpleNamespace(resnet18=resnet18))
    monkeypatch.setitem(sys.modules, "torchvision", made)
    load_page("resnet.py")
    workload = Workload(models.of("resnet-18"), data.load("synthetic"))
    assert workload.layout.size == 8 * 27 + 8 + 16 + 8 * 10 + 10
    trained_and_tested(workload)


def test_a_network_of_hugging_faces_kind(load_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class GPT2LMHeadModel(nn.Module):
        """Tied weights, a buffer, an object that is returned: what the real one has."""

        def __init__(self, config: SimpleNamespace) -> None:
            super().__init__()
            self.wte = nn.Embedding(config.vocab_size, config.n_embd)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
            self.lm_head.weight = self.wte.weight
            self.register_buffer("position_ids", torch.arange(config.n_positions))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> SimpleNamespace:
            return SimpleNamespace(loss=None, logits=self.lm_head(self.wte(input_ids).relu()), past_key_values=None)

    made = library("transformers", GPT2Config=SimpleNamespace, GPT2LMHeadModel=GPT2LMHeadModel)
    monkeypatch.setitem(sys.modules, "transformers", made)
    load_page("gpt2.py")
    workload = Workload(models.of("gpt2-small", width=8), data.load("text"))
    assert workload.layout.size == 8 * workload.dataset.outputs  # a weight that is shared is there once
    trained_and_tested(workload)


def trained_and_tested(workload: Workload) -> None:
    weights = workload.initial_weights(0)
    before = workload.evaluate(weights, 40)
    learner = workload.learner(np.arange(50), 0, 50, 0, Training(augment=False))
    losses = []
    for step in range(20):
        loss, gradient = learner.gradient(weights, step)
        weights.add_(gradient, alpha=-0.5)
        losses.append(loss)
    assert losses[-1] < losses[0]
    assert workload.evaluate(weights, 40).loss != before.loss
    assert workload.forward_flops > 0
