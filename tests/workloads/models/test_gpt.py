"""The language model: its size by its options, what it may look at, its count of operations, how it starts."""

from __future__ import annotations

from math import log

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional

from testbed.workloads import Workload
from testbed.workloads.config import Training
from testbed.workloads.data.text import cut
from testbed.workloads.flops import forward_flops
from testbed.workloads.models import base as models
from testbed.workloads.optimizer import AdamW

SMALL = {"layers": 2, "heads": 2, "width": 16, "context": 12}


def initial(seed: int = 0, outputs: int = 20, **options: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return models.of("gpt", **{**SMALL, **options}).build(outputs)


@pytest.mark.parametrize(("layers", "width", "context", "outputs"), [(2, 16, 12, 20), (4, 160, 128, 65)])
def test_parameters_by_hand(layers: int, width: int, context: int, outputs: int) -> None:
    block = (width * 3 * width + 3 * width) + (width * width + width) + 8 * width * width + 5 * width + 4 * width
    count = models.parameter_count(models.of("gpt", layers=layers, width=width, context=context), outputs)
    assert count == outputs * width + context * width + layers * block + 2 * width + width * outputs


def test_operations_are_the_linear_layers_and_attentions_two_products() -> None:
    tokens, width = SMALL["context"], SMALL["width"]
    linear = tokens * (SMALL["layers"] * 12 * width * width + width * 20)
    attention = SMALL["layers"] * 2 * tokens * tokens * width
    example = torch.zeros(1, tokens, dtype=torch.int64)
    assert forward_flops(initial(), example) == 2 * (linear + attention)


def test_a_score_depends_on_nothing_that_comes_later() -> None:
    net = initial().eval()
    tokens = torch.randint(0, 20, (3, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 20
    before, after = net(tokens), net(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert (before[:, 8:] - after[:, 8:]).abs().amax(2).min() > 0


def test_it_looks_back_to_the_first_token() -> None:
    net = initial().eval()
    tokens = torch.zeros(1, 12, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 0] = 7
    assert (net(tokens) - net(changed))[0, -1].abs().max() > 1e-5


def test_it_starts_undecided_with_every_parameter_in_use() -> None:
    net = initial(outputs=65, width=32)
    tokens = torch.randint(0, 65, (4, 12), generator=torch.Generator().manual_seed(0))
    loss = functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    assert loss.item() == pytest.approx(log(65), rel=0.02)
    assert all(part.isfinite().all() and part.any() for part in torch.autograd.grad(loss, list(net.parameters())))


def test_initial_weights_are_gpt_2s() -> None:
    layers = dict(initial(width=128, layers=2).named_parameters())

    def deviation(name: str) -> float:
        return layers[f"{name}.weight"].detach().std().item()

    assert deviation("blocks.0.expand") == pytest.approx(0.02, rel=0.05)
    assert deviation("blocks.1.project") == pytest.approx(0.02 / 2, rel=0.05)
    assert deviation("blocks.0.attention.project") == pytest.approx(0.02 / 2, rel=0.05)
    assert not any(value.any() for name, value in layers.items() if name.endswith("bias"))


def test_the_output_layer_alone_is_the_last_one() -> None:
    assert [layer.name for layer in models.layout(initial()) if layer.last] == ["head.weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 100, "heads": 3}, "width: 100 cannot be shared by 3 heads; for example 99"),
        ({"layers": 0}, ">= 1"),
        ({"layer": 2}, "unknown field `layer`"),
        ({"dropout": 1.0}, "< 1.0"),
    ],
)
def test_a_size_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        models.of("gpt", **options)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradients_repeat(dropout: float) -> None:
    text = cut(bytes(range(97, 117)) * 20, "character", "a test")
    first, second = (Workload(models.of("gpt", **SMALL, dropout=dropout), text) for _ in range(2))
    weights = first.initial_weights(0)
    learners = [each.learner(np.arange(each.dataset.train_examples), 0, 4, 0, Training()) for each in (first, second)]
    (loss, gradient), (again, other) = (learner.gradient(weights, 3) for learner in learners)
    assert loss == again
    assert torch.equal(gradient, other)
    assert not torch.equal(gradient, learners[0].gradient(weights, 4)[1])


@pytest.mark.slow
def test_it_learns_a_repeated_phrase() -> None:
    text = cut(b"abcdefghij klmnopqrst. " * 60, "character", "a test")
    workload = Workload(models.of("gpt", **SMALL), text)
    training = Training(steps=60, optimizer=AdamW())
    learner = workload.learner(np.arange(workload.dataset.train_examples), 0, 8, 0, training)
    weights = workload.initial_weights(0)
    state = training.optimizer.start(weights)
    for step in range(60):
        training.optimizer.update(state, weights, learner.gradient(weights, step)[1], 0.01)
    assert workload.evaluate(workload.initial_weights(0)).metrics["bits_per_character"] == pytest.approx(
        np.log2(text.outputs), rel=0.05
    )
    assert workload.evaluate(weights).metrics["bits_per_character"] < 0.5
