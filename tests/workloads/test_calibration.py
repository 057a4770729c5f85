"""Batch normalisation is tested with statistics of training data, and trains without leaving any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from testbed.workloads import Arrays, Model, Workload, calibration, model
from testbed.workloads.config import Training

pytestmark = pytest.mark.usefixtures("own_names")
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(loc=5.0, scale=3.0, size=(700, 4)), RANDOM.integers(0, 3, 700)


def normalised(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, outputs))


@pytest.fixture
def workload() -> Workload:
    model("normalised", input=(4,))(normalised)
    return Workload(Model(name="normalised"), Arrays(X[:600], Y[:600], X[600:], Y[600:]))


def scores(workload: Workload, weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """What the network gives with the statistics of the chosen examples, computed by hand in one batch."""
    net = normalised(3)
    torch.nn.utils.vector_to_parameters(weights, net.parameters())
    hidden = net[0](workload.dataset.train_batch(calibration.chosen(600))[0])
    return net[4](((net[0](inputs) - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt()).relu()).detach()


def test_a_test_takes_the_statistics_of_chosen_training_examples(workload: Workload) -> None:
    weights = workload.initial_weights(0)
    workload.dataset.tested_at_once = 500
    inputs, targets = workload.dataset.test_batch(np.arange(100))
    expected = functional.cross_entropy(scores(workload, weights, inputs), targets).item()
    assert workload.evaluate(weights).loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_test_examples_result_does_not_depend_on_the_others(workload: Workload) -> None:
    weights = workload.initial_weights(0)
    whole = workload.evaluate(weights)
    alone = []
    for place in range(100):
        one = Workload(
            Model(name="normalised"), Arrays(X[:600], Y[:600], X[600 + place :], Y[600 + place :], outputs=3)
        )
        alone.append(one.evaluate(weights, examples=1).loss)
    assert whole.loss == pytest.approx(np.mean(alone), rel=1e-4)


def test_the_batches_are_averaged(workload: Workload) -> None:
    weights = workload.initial_weights(0)
    in_one = workload.evaluate(weights, examples=10).loss
    workload.dataset.tested_at_once = 50
    assert workload.evaluate(weights, examples=10).loss == pytest.approx(in_one, rel=0.05)


def test_a_probe_is_a_test_and_a_loss_with_one_calibration(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, calibrations = workload.initial_weights(0), []
    calibrate = workload.flat.calibrate
    monkeypatch.setattr(workload.flat, "calibrate", lambda batches: (calibrations.append(1), calibrate(batches)))
    tested, loss = workload.probe(weights, 30, 600)
    assert len(calibrations) == 1
    assert tested == workload.evaluate(weights, examples=30)
    expected = functional.cross_entropy(scores(workload, weights, torch.tensor(X[:600]).float()), torch.tensor(Y[:600]))
    assert loss == pytest.approx(expected.item(), rel=1e-4)


def test_gradients_are_those_of_the_batch_at_hand_and_leave_nothing(workload: Workload) -> None:
    weights = workload.initial_weights(0)
    learner = workload.learner(np.arange(600), 0, 16, 0, Training())
    before = learner.gradient(weights, 3)[1]
    tested = workload.evaluate(weights)
    learner.gradient(weights * 2, 1)
    assert torch.equal(learner.gradient(weights, 3)[1], before)
    assert workload.evaluate(weights) == tested
    assert workload.flat.module[1].num_batches_tracked == 2  # of the calibration alone


def test_the_chosen_are_the_same_for_all_and_spread() -> None:
    assert np.array_equal(calibration.chosen(50_000), calibration.chosen(50_000))
    assert len(np.unique(calibration.chosen(50_000))) == calibration.EXAMPLES
    assert 20_000 < calibration.chosen(50_000).mean() < 30_000
    assert calibration.chosen(30).tolist() == list(range(30))


def test_a_network_without_is_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    model("plain", input=(4,))(lambda outputs: nn.Linear(4, outputs))
    workload = Workload(Model(name="plain"), Arrays(X[:600], Y[:600], X[600:], Y[600:]))
    monkeypatch.setattr(workload.dataset, "train_batch", pytest.fail)
    assert workload.evaluate(workload.initial_weights(0)).examples == 100
