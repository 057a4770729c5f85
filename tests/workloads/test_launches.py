"""Gradients on a device: the CPU's bits, whoever is computed together with whom, and few launches."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from own_parts import forget_after
from torch import nn

from testbed.gpu import graphs
from testbed.gpu.standin import DEVICE, NAME, standin
from testbed.workloads import Model, Workload
from testbed.workloads.config import Training
from testbed.workloads.data import text as text_data
from testbed.workloads.data.arrays import Arrays
from testbed.workloads.data.base import Dataset
from testbed.workloads.data.images import Enlarged, Images, Reordered, located
from testbed.workloads.data.labelled import LabelledImages
from testbed.workloads.devices import alone, dealt, device, share
from testbed.workloads.launches import MOST_TOGETHER
from testbed.workloads.learner import Learner
from testbed.workloads.models.base import model, of
from testbed.workloads.models.plain import tiny

pytestmark = pytest.mark.slow  # trains on an imitated device

SHARD = np.arange(0, 300, 2)


def learners(model: Model, dataset: Dataset, where: str, count: int = 3, **training: Any) -> list[Learner]:
    workload = Workload(model, dataset, device(where))
    return [workload.learner(SHARD, worker, 8, 0, Training(**training)) for worker in range(count)]


def gradient(learner: Learner, weights: torch.Tensor, step: int) -> list[Any]:
    """Its loss, and what it is made of."""
    return list(learner.gradient(weights, step))


def factors(learner: Learner, weights: torch.Tensor, step: int) -> list[Any]:
    """The same of one with factors."""
    loss, others, pairs = learner.factors(weights, step)
    return [loss, others, *(part for pair in pairs for part in pair)]


def same_everywhere(model: Model, dataset: Dataset, asked: Any = gradient, **training: Any) -> None:
    """Three workers at weights of their own, five steps: asked for together or alone, captured at the second."""
    here = learners(model, dataset, "cpu", **training)
    weights = [torch.randn(here[0].model.layout.size, generator=torch.manual_seed(k)) * 0.05 for k in range(3)]
    expected = [[asked(each, own, step) for each, own in zip(here, weights, strict=True)] for step in range(5)]
    with standin():
        there = learners(model, dataset, NAME, **training)
        moved = [own.to(DEVICE) for own in weights]
        launches = there[0]._launches
        assert launches is not None
        for step in range(5):
            launches.together = step != 2
            found = [asked(each, own, step) for each, own in zip(there, moved, strict=True)]
            for own in moved:
                own.add_(1.0)  # whoever asked may change its weights: the gradient is at those of the moment
            launches.run()
            for own, before in zip(moved, weights, strict=True):
                own.copy_(before)
            for (loss, *parts), (other_loss, *others) in zip(found, expected[step], strict=True):
                assert isinstance(loss, torch.Tensor)
                assert loss.item() == pytest.approx(other_loss, rel=1e-6)
                for part, other in zip(parts, others, strict=True):
                    assert torch.allclose(part.cpu(), other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("training", [{}, {"weight_decay": 0.01, "clip_norm": 0.1}, {"augment": False}])
def test_a_gradient_on_a_device_is_the_cpus(dataset: LabelledImages, training: dict[str, Any]) -> None:
    same_everywhere(Model(name="tiny"), dataset, **training)


def test_so_is_one_of_convolutions(dataset: LabelledImages) -> None:
    same_everywhere(Model(name="cifarnet"), dataset)


@pytest.mark.parametrize("training", [{"weight_decay": 0.01}, {"clip_norm": 0.1}, {"augment": False}])
def test_so_are_its_factors(dataset: LabelledImages, training: dict[str, Any]) -> None:
    same_everywhere(Model(name="tiny"), dataset, factors, **training)


def test_a_gradient_and_factors_at_one_instant_are_two_launches(dataset: LabelledImages) -> None:
    with standin():
        one, other, _ = learners(Model(name="tiny"), dataset, NAME)
        weights = torch.randn(one.model.layout.size, generator=torch.manual_seed(0)).mul(0.05).to(DEVICE)
        alone = [gradient(one, weights, 0), factors(other, weights, 0)]
        launches = one._launches
        assert launches is not None
        launches.together = True
        together = [gradient(one, weights, 0), factors(other, weights, 0)]
        launches.run()
        for first, second in zip(alone, together, strict=True):
            assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, second, strict=True))


def test_so_is_a_language_models(monkeypatch: pytest.MonkeyPatch) -> None:
    words = text_data.cut(b"so it goes, and so it went. " * 400, "character", "a text")
    same_everywhere(of("gpt", layers=1, heads=2, width=16, context=16), words)


@pytest.mark.parametrize("asked", [gradient, factors])
def test_dropout_drops_what_it_drops_on_the_cpu(
    dataset: LabelledImages, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in draws as the CPU does; a worker at a time, by that worker's seed."""
    forget_after(monkeypatch)

    @model("dropping", input=(3, 24, 24))
    def dropping(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1728, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, outputs))

    same_everywhere(Model(name="dropping"), dataset, asked)


def test_so_does_a_data_set_of_ones_own() -> None:
    x, y = np.random.default_rng(0).standard_normal((300, 3, 24, 24)), np.arange(300) % 10
    same_everywhere(Model(name="tiny"), Arrays(x, y, x[:20], y[:20]))


@pytest.mark.parametrize("asked", [gradient, factors])
@pytest.mark.parametrize("differ", [1, 2, 8])
def test_eight_gradients_are_one_launch(dataset: LabelledImages, asked: Any, differ: int) -> None:
    with standin() as counts:
        there = learners(Model(name="tiny"), dataset, NAME, count=8)
        launches = there[0]._launches
        assert launches is not None
        launches.together = True
        weights = [torch.zeros(there[0].model.layout.size).to(DEVICE) for _ in range(differ)]
        for step in range(4):
            before, graphs_before = counts.launches, counts.graphs
            waits, ups = counts.waits, counts.ups
            for number, each in enumerate(there):
                asked(each, weights[number % differ], step)
            launches.run()
        assert counts.graphs - graphs_before == 1
        assert counts.launches - before == differ + 1 + 1  # the weights' copies, the graph, one copy of all results
        assert counts.ups - ups == 1
        assert counts.waits == waits


def test_what_cannot_be_captured_is_computed_all_the_same(
    dataset: LabelledImages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs.standin, "recorded", refuse)
    same_everywhere(Model(name="tiny"), dataset)
    assert "gradients are launched operation by operation: operation not permitted" in capsys.readouterr().err


def test_more_than_fit_are_launched_in_turns(dataset: LabelledImages) -> None:
    with standin():
        there = learners(Model(name="tiny"), dataset, NAME, count=MOST_TOGETHER + 3)
        launches = there[0]._launches
        assert launches is not None
        weights = torch.zeros(there[0].model.layout.size).to(DEVICE)
        there[0].gradient(weights, 0)
        launches.together = True
        found = [each.gradient(weights, 0)[1] for each in there]
        launches.run()
        alone = [each.gradient(weights, 0) for each in there[-2:]]
        launches.run()
        assert torch.equal(found[-1].cpu(), alone[-1][1].cpu())


def test_gradients_wait_until_the_first_of_them_is_needed(dataset: LabelledImages) -> None:
    with standin():
        one, other, _ = learners(Model(name="tiny"), dataset, NAME)
        launches = one._launches
        assert launches is not None
        launches.together = True
        weights = torch.zeros(one.model.layout.size).to(DEVICE)
        one.gradient(weights, 0)
        launches.needed(2.0)
        launches.needed(1.0)  # by who has asked for nothing
        assert launches.due_s == 2.0
        other.gradient(weights, 0)
        launches.needed(1.5)
        assert launches.due_s == 1.5
        launches.run()
        assert launches.due_s == inf


def test_workers_at_unequal_shares_of_weights_are_launched_by_weights(dataset: LabelledImages) -> None:
    with standin() as counts:
        there = learners(Model(name="tiny"), dataset, NAME, count=3)
        launches = there[0]._launches
        assert launches is not None
        two = [torch.full((there[0].model.layout.size,), value).to(DEVICE) for value in (0.01, 0.02)]
        alone = [gradient(each, two[k // 2], 0) for k, each in enumerate(there)]
        launches.together = True
        for _ in range(3):
            graphs_before = counts.graphs
            found = [gradient(each, two[k // 2], 0) for k, each in enumerate(there)]
            launches.run()
            for (loss, part), (other_loss, other) in zip(found, alone, strict=True):
                assert torch.allclose(loss.cpu(), other_loss.cpu())
                assert torch.allclose(part.cpu(), other.cpu(), rtol=1e-5, atol=1e-7)
        assert counts.graphs - graphs_before == 2


class Centred(nn.Module):
    """A network in which an example's scores depend on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.inner(x)
        return scores - scores.mean(0)


class Squared(nn.Module):
    """A network that does with a parameter what is not known how to do for several workers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10, 3 * 24 * 24) / 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.square().T


@pytest.mark.parametrize(
    ("module", "why"),
    [(Centred, "examples of a batch have to do with one another"), (Squared, "square of a parameter")],
)
def test_what_one_pass_cannot_do_each_does_by_itself(
    dataset: LabelledImages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: Any, why: str
) -> None:
    monkeypatch.setattr(Model, "build", lambda self, outputs: module())
    same_everywhere(Model(name="tiny"), dataset)
    assert f"each worker's gradient is computed by itself: {why}" in capsys.readouterr().err


def test_one_pass_is_made_where_it_can_be(dataset: LabelledImages, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise AssertionError("alone")

    with standin():
        there = learners(Model(name="cifarnet"), dataset, NAME)
        launches = there[0]._launches
        assert launches is not None
        launches.together = True
        weights = torch.zeros(there[0].model.layout.size).to(DEVICE)
        for step in range(3):
            for each in there:
                gradient(each, weights, step)
            launches.run()
            monkeypatch.setattr(launches, "_one", refuse)


@pytest.mark.parametrize("asked", [gradient, factors])
def test_a_worker_with_its_weights_on_the_cpu_waits_once(dataset: LabelledImages, asked: Any) -> None:
    """On the emulated fabric: weights go up, loss and gradient come down in one transfer."""
    with standin() as counts:
        (worker,) = learners(Model(name="tiny"), dataset, NAME, count=1)
        weights = torch.zeros(worker.model.layout.size)
        for step in range(3):
            waits, down = counts.waits, counts.down
            loss, *parts = asked(worker, weights, step)
        assert isinstance(loss, float)
        assert all(part.device.type == "cpu" for part in parts)
        assert counts.waits - waits == 1
        assert counts.down - down == 4 * (sum(part.numel() for part in parts) + 1)


def test_images_are_found_on_the_device_as_on_the_cpu() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 4), dtype=np.uint8)
    plain = Images([pixels[:7], pixels[7:]])
    indexes = np.array([3, 19, 0, 7, 7])
    for images in (plain, Enlarged(plain, 2), Reordered(plain, np.arange(20)[::-1].copy())):
        with standin():
            look_up = located(images, DEVICE)
            assert look_up is not None
            assert torch.equal(look_up(torch.from_numpy(indexes).to(DEVICE)).cpu(), images.take(indexes))


def test_gpus_are_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [dealt("cuda", number) for number in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert dealt("cuda:1", 2) == "cuda:1"
    assert dealt("cpu", 2) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert dealt("cuda", 2) == "cuda"


def test_processes_of_a_run_see_the_gpu_that_is_named_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray hands out what it sees, numbered from 0, so that a number of this process's means another there."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert alone("cpu") == alone("cuda") == {}
    assert alone("cuda:1") == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8f")
    assert alone("cuda:1") == {"CUDA_VISIBLE_DEVICES": "GPU-8f"}


@pytest.mark.parametrize(("workers", "gpus"), [(8, 1), (3, 1), (7, 2), (2, 4)])
def test_all_workers_find_room_on_the_gpus(workers: int, gpus: int) -> None:
    part = share(workers, gpus)
    assert 0 < part <= 1
    assert int(1 / part) * gpus >= workers or part == 1


def test_a_language_model_without_dropout_is_one_pass_at_any_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers' examples are as many as its context has places, which an embedding of places could be taken for."""
    forget_after(monkeypatch)

    @model("places", input=(16,))
    def places(outputs: int) -> nn.Module:
        return Places(outputs)

    words = text_data.cut(b"so it goes, and so it went. " * 400, "character", "a text")
    weights = torch.randn(learners(Model(name="places"), words, "cpu")[0].model.layout.size).mul(0.05)
    with standin():
        there = learners(Model(name="places"), words, NAME, count=8)
        launches = there[0]._launches
        assert launches is not None
        launches.together = True
        for together in (8, 2, 8, 2):  # 8 examples a worker
            found = [each.gradient(weights.to(DEVICE), 0)[1] for each in there[:together]]
            launches.run()
            for each, one in zip(there, found, strict=False):
                alone = learners(Model(name="places"), words, "cpu", count=8)[each.worker].gradient(weights, 0)[1]
                assert torch.allclose(one.cpu(), alone, rtol=1e-5, atol=1e-7)


class Places(nn.Module):
    """Embeddings of tokens and of their places, as a language model begins."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.token, self.place, self.head = nn.Embedding(outputs, 8), nn.Embedding(16, 8), nn.Linear(8, outputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device)))
