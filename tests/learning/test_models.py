"""Models: sizes against hand counts, weights by seed, views of a flat vector."""

from __future__ import annotations

import pytest
import torch

from testbed.errors import InputError
from testbed.learning import models
from testbed.learning.models import MODELS, FlatModel

CIFARNET_FORWARD_FLOPS = 2 * (
    24 * 24 * 64 * (5 * 5 * 3)  # conv1
    + 12 * 12 * 64 * (5 * 5 * 64)  # conv2
    + 2304 * 384
    + 384 * 192
    + 192 * 10
)
TINY_FORWARD_FLOPS = 2 * (3 * 6 * 6 * 32 + 32 * 10)


@pytest.mark.parametrize(("name", "parameters"), [("cifarnet", 1_068_298), ("tiny", 3_818)])
def test_parameter_count(name: str, parameters: int) -> None:
    layout = models.layout(models.build(name))
    assert layout.size == parameters
    assert len(models.initial_weights(name, seed=0)) == parameters


@pytest.mark.parametrize(("name", "flops"), [("cifarnet", CIFARNET_FORWARD_FLOPS), ("tiny", TINY_FORWARD_FLOPS)])
def test_forward_flops(name: str, flops: int) -> None:
    assert models.forward_flops(name) == flops


def test_cifarnet_layers() -> None:
    layout = models.layout(models.build("cifarnet"))
    assert [(layer.name, layer.shape) for layer in layout if not layer.bias] == [
        ("conv1.weight", (64, 3, 5, 5)),
        ("conv2.weight", (64, 64, 5, 5)),
        ("local3.weight", (384, 2304)),
        ("local4.weight", (192, 384)),
        ("softmax.weight", (10, 192)),
    ]
    assert [layer.name for layer in layout if layer.last] == ["softmax.weight", "softmax.bias"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_maps_its_input_to_class_scores(name: str) -> None:
    scores = models.build(name, classes=7)(torch.zeros(2, *models.spec(name).input_size))
    assert scores.shape == (2, 7)


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no model 'cifarnt'; did you mean 'cifarnet'"):
        models.build("cifarnt")


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    first = models.initial_weights(name, seed=3)
    torch.rand(5)  # moves the global generator on
    state = torch.random.get_rng_state()
    assert torch.equal(first, models.initial_weights(name, seed=3))
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(first, models.initial_weights(name, seed=4))


def test_cifarnet_starts_as_the_tutorial_does() -> None:
    weights = models.initial_weights("cifarnet", seed=0)
    layers = {layer.name: weights[layer.slice] for layer in models.layout(models.build("cifarnet"))}
    assert layers["local3.weight"].abs().max() <= 0.08
    assert layers["local3.weight"].std() == pytest.approx(0.04 * 0.8796, rel=0.01)  # a normal cut at 2 deviations
    assert layers["local4.bias"].tolist() == pytest.approx([0.1] * 192)
    assert not layers["softmax.bias"].any()


def test_flat_model_computes_with_the_loaded_weights() -> None:
    model, weights = FlatModel("tiny"), models.initial_weights("tiny", seed=1)
    model.load(weights)
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    hidden_weight, hidden_bias, output_weight, output_bias = (
        weights[layer.slice].view(layer.shape) for layer in model.layout
    )
    pooled = images.view(2, 3, 6, 4, 6, 4).mean((3, 5)).flatten(1)
    expected = (pooled @ hidden_weight.T + hidden_bias).relu() @ output_weight.T + output_bias
    torch.testing.assert_close(model.module(images), expected)


def test_loading_copies() -> None:
    model, weights = FlatModel("tiny"), models.initial_weights("tiny", seed=1)
    model.load(weights)
    before = model.parameters[0].detach().clone()
    weights.zero_()
    assert torch.equal(model.parameters[0], before)


def test_weights_of_another_size_are_refused() -> None:
    with pytest.raises(RuntimeError, match="size"):
        FlatModel("tiny").load(torch.zeros(3))
