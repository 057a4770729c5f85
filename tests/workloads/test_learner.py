"""A worker's gradient is plain autograd's, repeatable, with decay and clipping where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads import Model, Workload, shards
from testbed.workloads.config import Training
from testbed.workloads.data import augment, cifar, standin
from testbed.workloads.data.images import Content, Images, Split
from testbed.workloads.data.labelled import LabelledImages
from testbed.workloads.devices import device
from testbed.workloads.learner import Learner

SHARD = np.arange(0, 300, 2)


@pytest.fixture(scope="module")
def tiny(dataset: LabelledImages) -> Workload:
    return Workload(Model(name="tiny"), dataset)


@pytest.fixture(scope="module")
def weights(tiny: Workload) -> torch.Tensor:
    return tiny.initial_weights(seed=0)


def make(workload: Workload, worker: int = 1, batch_size: int = 16, seed: int = 0, **training: Any) -> Learner:
    return workload.learner(SHARD, worker, batch_size, seed, Training(**training))


def test_gradient_equals_backward(tiny: Workload, weights: torch.Tensor) -> None:
    worker = make(tiny)
    loss, gradient = worker.gradient(weights, step=3)
    reference = tiny.model.build(10)
    torch.nn.utils.vector_to_parameters(weights, reference.parameters())
    images, labels = worker.batch(3)
    expected = functional.cross_entropy(reference(images), labels)
    expected.backward()
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, torch.cat([p.grad.flatten() for p in reference.parameters()]))


def test_batches_come_from_the_shard_with_their_labels(tiny: Workload, dataset: LabelledImages) -> None:
    worker = make(tiny, augment=False)
    indices = shards.batch_indices(SHARD, 0, 1, 5, 16)
    images, labels = worker.batch(5)
    assert labels.tolist() == dataset.train_labels[indices].tolist()
    expected = augment.center(dataset.train_images.take(indices), (3, 24, 24))
    assert torch.equal(images, expected)


def test_equal_arguments_give_equal_bits_whatever_came_before(dataset: LabelledImages) -> None:
    workload, shared = (Workload(Model(name="cifarnet"), dataset) for _ in range(2))
    weights = workload.initial_weights(seed=0)
    loss, gradient = make(workload).gradient(weights, step=7)
    make(shared, worker=2).gradient(weights * 2, step=1)
    torch.manual_seed(99)
    again_loss, again = make(shared).gradient(weights, step=7)
    assert loss == again_loss
    assert torch.equal(gradient, again)


@pytest.mark.parametrize("change", [{"step": 8}, {"worker": 2}, {"seed": 1}, {"augment": False}], ids=str)
def test_each_part_of_the_key_counts(tiny: Workload, weights: torch.Tensor, change: dict) -> None:
    step = change.pop("step", 7)
    _, gradient = make(tiny).gradient(weights, 7)
    _, other = make(tiny, **change).gradient(weights, step)
    assert not torch.equal(gradient, other)


def test_the_gradient_is_fresh(tiny: Workload, weights: torch.Tensor) -> None:
    worker = make(tiny)
    _, gradient = worker.gradient(weights, 0)
    kept = gradient.clone()
    worker.gradient(weights, 1)
    assert torch.equal(gradient, kept)


def test_weight_decay_is_in_the_gradient_and_not_in_the_loss(tiny: Workload, weights: torch.Tensor) -> None:
    loss, gradient = make(tiny).gradient(weights, 0)
    decayed_loss, decayed = make(tiny, weight_decay=0.1).gradient(weights, 0)
    assert loss == decayed_loss
    torch.testing.assert_close(decayed, gradient + 0.1 * weights)


def test_clipping_bounds_the_gradient(tiny: Workload, weights: torch.Tensor) -> None:
    _, gradient = make(tiny).gradient(weights, 0)
    limit = float(gradient.norm()) / 2
    _, clipped = make(tiny, clip_norm=limit).gradient(weights, 0)
    torch.testing.assert_close(clipped, gradient / 2)


def test_evaluation_counts_right_answers(tiny: Workload, dataset: LabelledImages, weights: torch.Tensor) -> None:
    result = tiny.evaluate(weights)
    tiny.flat.load(weights)
    images = augment.center(dataset.test_images.take(np.arange(200)), (3, 24, 24))
    labels = torch.from_numpy(dataset.test_labels)
    scores = tiny.flat(images).detach()
    assert result.examples == 200
    assert result.metrics["accuracy"] == pytest.approx((scores.argmax(1) == labels).float().mean().item())
    assert result.loss == pytest.approx(functional.cross_entropy(scores, labels).item(), rel=1e-5)


def test_of_many_classes_the_first_five_are_looked_at() -> None:
    def images(classes: int) -> LabelledImages:
        one = Split(Images([np.zeros((120, 3, 8, 8), np.uint8)]), np.arange(120) % classes)
        return LabelledImages(Content(one, one, classes))

    assert list(images(10).metrics) == ["accuracy"]
    metric = images(120).metrics["top5_accuracy"]
    scores = torch.arange(120.0).repeat(4, 1)  # the five highest are those of 115 to 119
    assert metric.measure(scores, torch.tensor([119, 115, 114, 0])) == 2


def test_evaluation_can_take_fewer_images_but_not_more(
    tiny: Workload, weights: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.evaluate(weights, examples=30).examples == 30
    assert tiny.evaluate(weights, examples=10_000).examples == 200
    whole = tiny.evaluate(weights)
    monkeypatch.setattr(tiny.dataset, "tested_at_once", 7)
    in_pieces = tiny.evaluate(weights)
    assert in_pieces.metrics == whole.metrics
    assert in_pieces.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.mark.slow
def test_the_tiny_model_learns(tiny: Workload, weights: torch.Tensor) -> None:
    worker = make(tiny, augment=False, batch_size=64)
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
        device(name)


@pytest.mark.full
@pytest.mark.slow
def test_the_stand_in_takes_cifarnet_hundreds_of_steps() -> None:
    content = cifar.content(standin.generate(batches=6, images=10_000, form=cifar.FORMAT))
    workload = Workload(Model(name="cifarnet"), LabelledImages(content))
    weights = workload.initial_weights(seed=0)
    worker = workload.learner(np.arange(50_000), 0, 128, 0, Training())
    accuracy = {}
    for step in range(250):
        _, gradient = worker.gradient(weights, step)
        weights.add_(gradient, alpha=-0.1)
        if step + 1 in (50, 250):
            accuracy[step + 1] = workload.evaluate(weights, examples=1000).metrics["accuracy"]
    assert accuracy[50] < 0.3
    assert 0.3 < accuracy[250] < 0.8
