"""A linear layer's factors multiply to its gradient, come from the same backward pass, and cost no product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from testbed.errors import InputError
from testbed.workloads import Model, Workload
from testbed.workloads.config import Training
from testbed.workloads.data.labelled import LabelledImages
from testbed.workloads.learner import Learner
from testbed.workloads.models.base import initial_weights, model

BATCH = 12


def make(name: str, dataset: LabelledImages, **options: Any) -> Learner:
    return Workload(Model(name=name), dataset).learner(np.arange(300), 1, BATCH, 0, Training(**options))


def multiplied(worker: Learner, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
    """Loss and flat gradient, put together from what `factors` returns, element by element of the definition."""
    loss, others, factors = worker.factors(weights, step)
    layout, gradient = worker.model.layout, torch.full_like(weights, torch.nan)
    for layer, (x, delta) in zip(layout.linear, factors, strict=True):
        assert x.shape == (BATCH, layer.inputs)
        assert delta.shape == (BATCH, layer.outputs)
        gradient[layer.weight.slice] = (delta.T @ x / BATCH).reshape(-1)
        if layer.bias is not None:
            gradient[layer.bias.slice] = delta.mean(0)
    gradient[gradient.isnan()] = others
    return loss, gradient


def dropping(classes: int) -> nn.Module:
    """Linear layers alone, one without a bias, and a dropout between them."""
    layers = (nn.Linear(1728, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 20, bias=False), nn.Linear(20, classes))
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.fixture(autouse=True)
def _with_dropout(own_names: None) -> None:
    model("dropping", input=(3, 24, 24))(dropping)


@pytest.mark.parametrize("name", ["tiny", "cifarnet", pytest.param("nin-32", marks=pytest.mark.slow), "dropping"])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_they_multiply_to_the_gradient(dataset: LabelledImages, name: str, clip_norm: float | None) -> None:
    worker, weights = make(name, dataset, clip_norm=clip_norm), initial_weights(Model(name=name), seed=0, outputs=10)
    expected_loss, expected = worker.gradient(weights, 3)
    loss, gradient = multiplied(worker, weights, 3)
    assert loss == expected_loss
    # 5e-5: what a float32 norm of a million elements, which clipping divides by, owes to the order of its sum.
    torch.testing.assert_close(gradient, expected, rtol=5e-5, atol=1e-6 * float(expected.abs().max()))
    if clip_norm is not None:
        assert float(gradient.norm()) == pytest.approx(clip_norm, rel=1e-5)


def test_weight_decay_is_left_to_the_update(dataset: LabelledImages) -> None:
    weights = initial_weights(Model(name="tiny"), seed=0, outputs=10)
    plain, decayed = (multiplied(make("tiny", dataset, weight_decay=decay), weights, 0) for decay in (0.0, 0.1))
    assert plain[0] == decayed[0]
    assert torch.equal(plain[1], decayed[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "cifarnet"])
def test_the_products_that_make_the_layers_gradients_are_not_computed(dataset: LabelledImages, name: str) -> None:
    worker, weights = make(name, dataset), initial_weights(Model(name=name), seed=0, outputs=10)
    counts = []
    for call in (worker.gradient, worker.factors):
        with FlopCounterMode(display=False) as counter:
            call(weights, 0)
        counts.append(counter.get_total_flops())
    assert counts[0] - counts[1] == 2 * BATCH * sum(layer.weight.size for layer in worker.model.layout.linear)


def test_nothing_stays_on_the_model_and_calls_repeat(dataset: LabelledImages) -> None:
    worker, weights = make("tiny", dataset), initial_weights(Model(name="tiny"), seed=0, outputs=10)
    _, first = multiplied(worker, weights, 2)
    assert not any(module._forward_hooks for module in worker.model.module.modules())
    worker.factors(weights * 2, 5)
    assert torch.equal(multiplied(worker, weights, 2)[1], first)


class Odd(nn.Module):
    """The tiny model with its layers used otherwise."""

    def __init__(self, module: nn.Module, order: str) -> None:
        super().__init__()
        for name, child in module.named_children():
            self.add_module(name, child)
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(self.flatten(self.pool(x)))
        if self.order == "twice":
            hidden = hidden + self.hidden(self.flatten(self.pool(-x)))
        if self.order == "never":
            return hidden[:, :10]
        if self.order == "in place":
            return self.output(hidden.relu_())
        rows = hidden[:, None].relu() if self.order == "deeper" else hidden.relu()
        return self.output(rows).reshape(len(x), -1)


@pytest.mark.parametrize(
    ("order", "layer"), [("twice", "hidden"), ("never", "output"), ("deeper", "output"), ("in place", "hidden")]
)
def test_a_layer_without_factors_is_named(dataset: LabelledImages, order: str, layer: str) -> None:
    worker = make("tiny", dataset)
    worker.model.module = Odd(worker.model.module, order)
    with pytest.raises(InputError, match=f"layer {layer}: its gradient has no factors"):
        worker.factors(initial_weights(Model(name="tiny"), seed=0, outputs=10), 0)
    assert not any(module._forward_hooks for module in worker.model.module.modules())


def test_a_matrix_that_is_no_linear_layers_has_no_factors(dataset: LabelledImages) -> None:
    class Turned(nn.Module):
        """x W where a Linear has x W'."""

        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.weight, self.bias = linear.weight, linear.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.T + self.bias

    worker = make("tiny", dataset)
    worker.model.module.output = Turned(worker.model.module.output)
    with pytest.raises(InputError, match="layer output: its gradient has no factors, its matrix is a Turned's"):
        worker.factors(initial_weights(Model(name="tiny"), seed=0, outputs=10), 0)
