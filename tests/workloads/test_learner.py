"""A worker's gradient is plain autograd's, repeatable, with decay and clipping where they belong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads import learner, shards
from testbed.workloads.data import cifar, standin
from testbed.workloads.data.base import Dataset
from testbed.workloads.learner import Learner, evaluate
from testbed.workloads.models import base as models
from testbed.workloads.models.base import FlatModel

SHARD = np.arange(0, 300, 2)


@pytest.fixture(scope="module")
def model() -> FlatModel:
    return FlatModel("tiny")


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    return models.initial_weights("tiny", seed=0)


def make(model: FlatModel, dataset: Dataset, **options) -> Learner:
    return Learner(model, dataset, SHARD, **{"worker": 1, "batch_size": 16, "seed": 0, **options})


def test_gradient_equals_backward(model: FlatModel, dataset: Dataset, weights: torch.Tensor) -> None:
    worker = make(model, dataset)
    loss, gradient = worker.gradient(weights, step=3)
    reference = models.build("tiny")
    torch.nn.utils.vector_to_parameters(weights, reference.parameters())
    images, labels = worker.batch(3)
    expected = functional.cross_entropy(reference(images), labels)
    expected.backward()
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, torch.cat([p.grad.flatten() for p in reference.parameters()]))


def test_batches_come_from_the_shard_with_their_labels(model: FlatModel, dataset: Dataset) -> None:
    worker = make(model, dataset, augmented=False)
    indices = shards.batch_indices(SHARD, 0, 1, 5, 16)
    images, labels = worker.batch(5)
    assert labels.tolist() == dataset.train_labels[indices].tolist()
    expected = learner.augment.center(dataset.train_images.take(indices), model.input_size)
    assert torch.equal(images, expected)


def test_equal_arguments_give_equal_bits_whatever_came_before(dataset: Dataset) -> None:
    weights = models.initial_weights("cifarnet", seed=0)
    first = make(FlatModel("cifarnet"), dataset)
    loss, gradient = first.gradient(weights, step=7)
    shared = FlatModel("cifarnet")
    other = make(shared, dataset, worker=2)
    other.gradient(weights * 2, step=1)
    torch.manual_seed(99)
    again_loss, again = make(shared, dataset).gradient(weights, step=7)
    assert loss == again_loss
    assert torch.equal(gradient, again)


@pytest.mark.parametrize("change", [{"step": 8}, {"worker": 2}, {"seed": 1}, {"augmented": False}], ids=str)
def test_each_part_of_the_key_counts(model: FlatModel, dataset: Dataset, weights: torch.Tensor, change: dict) -> None:
    step = change.pop("step", 7)
    _, gradient = make(model, dataset).gradient(weights, 7)
    _, other = make(model, dataset, **change).gradient(weights, step)
    assert not torch.equal(gradient, other)


def test_the_gradient_is_fresh(model: FlatModel, dataset: Dataset, weights: torch.Tensor) -> None:
    worker = make(model, dataset)
    _, gradient = worker.gradient(weights, 0)
    kept = gradient.clone()
    worker.gradient(weights, 1)
    assert torch.equal(gradient, kept)


def test_weight_decay_is_in_the_gradient_and_not_in_the_loss(
    model: FlatModel, dataset: Dataset, weights: torch.Tensor
) -> None:
    loss, gradient = make(model, dataset).gradient(weights, 0)
    decayed_loss, decayed = make(model, dataset, weight_decay=0.1).gradient(weights, 0)
    assert loss == decayed_loss
    torch.testing.assert_close(decayed, gradient + 0.1 * weights)


def test_clipping_bounds_the_gradient(model: FlatModel, dataset: Dataset, weights: torch.Tensor) -> None:
    _, gradient = make(model, dataset).gradient(weights, 0)
    limit = float(gradient.norm()) / 2
    _, clipped = make(model, dataset, clip_norm=limit).gradient(weights, 0)
    torch.testing.assert_close(clipped, gradient / 2)


def test_evaluation_counts_right_answers(model: FlatModel, dataset: Dataset, weights: torch.Tensor) -> None:
    result = evaluate(model, dataset, weights)
    model.load(weights)
    images = learner.augment.center(dataset.test_images.take(np.arange(200)), model.input_size)
    labels = torch.from_numpy(dataset.test_labels)
    scores = model.module(images).detach()
    assert result.images == 200
    assert result.accuracy == pytest.approx((scores.argmax(1) == labels).float().mean().item())
    assert result.loss == pytest.approx(functional.cross_entropy(scores, labels).item(), rel=1e-5)


def test_evaluation_can_take_fewer_images_but_not_more(
    model: FlatModel, dataset: Dataset, weights: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(model, dataset, weights, images=30).images == 30
    assert evaluate(model, dataset, weights, images=10_000).images == 200
    whole = evaluate(model, dataset, weights)
    monkeypatch.setattr(learner, "EVALUATION_BATCH", 7)
    in_pieces = evaluate(model, dataset, weights)
    assert in_pieces.accuracy == whole.accuracy
    assert in_pieces.loss == pytest.approx(whole.loss, rel=1e-5)


def test_the_tiny_model_learns(model: FlatModel, dataset: Dataset, weights: torch.Tensor) -> None:
    worker = make(model, dataset, augmented=False, batch_size=64)
    current = weights.clone()
    losses = []
    for step in range(150):
        loss, gradient = worker.gradient(current, step)
        current.add_(gradient, alpha=-0.1)
        losses.append(loss)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])


@pytest.mark.parametrize(("name", "message"), [("cuda:99", "cannot be used"), ("gpu", "unknown"), ("meta", "unknown")])
def test_a_device_that_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"device '{name}' .*{message}"):
        learner.device(name)


@pytest.mark.slow
def test_the_stand_in_takes_cifarnet_hundreds_of_steps() -> None:
    train, test, classes = cifar.content(standin.generate(batches=6, images=10_000))
    dataset = Dataset("synthetic", train.images, train.labels, test.images, test.labels, classes, real=False, note="")
    model, weights = FlatModel("cifarnet"), models.initial_weights("cifarnet", seed=0)
    worker = Learner(model, dataset, np.arange(50_000), worker=0, batch_size=128, seed=0)
    accuracy = {}
    for step in range(250):
        _, gradient = worker.gradient(weights, step)
        weights.add_(gradient, alpha=-0.1)
        if step + 1 in (50, 250):
            accuracy[step + 1] = evaluate(model, dataset, weights, images=1000).accuracy
    assert accuracy[50] < 0.3
    assert 0.3 < accuracy[250] < 0.8
