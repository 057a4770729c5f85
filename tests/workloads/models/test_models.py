"""Models: sizes against hand counts, weights by seed, views of a flat vector."""

from __future__ import annotations

import re
from math import log

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads import Data, Model
from testbed.workloads.flat import FlatModel
from testbed.workloads.flops import forward_flops
from testbed.workloads.models import known
from testbed.workloads.models.base import MODELS, initial_weights, layout
from testbed.workloads.models.gpt import GPTOptions
from testbed.workloads.workload import check_fits

PARAMETERS = {  # at ten classes, or ImageNet's 1,000
    "tiny": 3_818,
    "fc": 1_116_410,  # ISGQ's layer sizes
    "lenet": 1_663_370,  # ISGQ: 1.66 million
    "cifarnet": 1_068_298,  # ISGQ: 1.07 million
    "mqgrad-cnn": 16_224_586,  # MQGrad's layer sizes
    "alexnet-32": 23_273_418,
    "vgg-a-32": 9_228_362,
    "nin-32": 968_394,
    "alexnet": 62_379_720,  # ISGQ: 62.4 million
    "vgg-a": 132_866_088,  # Simonyan & Zisserman: 133 million
    "nin": 7_599_432,  # thresholded synchronisation: 29 MB
    "googlenet": 7_005_832,
    "resnet-50": 25_557_032,
    "resnet-152": 60_192_808,
}
MULTIPLY_ADDS = {  # of one image's forward pass; millions
    "tiny": (3 * 6 * 6 * 32 + 32 * 10) / 1e6,
    "fc": (784 * 1000 + 1000 * 300 + 300 * 100 + 100 * 10) / 1e6,
    "lenet": (28 * 28 * 32 * 25 + 14 * 14 * 64 * 32 * 25 + 3136 * 512 + 512 * 10) / 1e6,
    "cifarnet": (24 * 24 * 64 * 75 + 12 * 12 * 64 * 1600 + 2304 * 384 + 384 * 192 + 192 * 10) / 1e6,
    "mqgrad-cnn": (28 * 28 * 64 * 75 + 14 * 14 * 64 * 1600 + 3136 * 2304 + 2304 * 3840 + 38400) / 1e6,
    "alexnet-32": 62.74,
    "vgg-a-32": 152.8,
    "nin-32": 222.5,
    "alexnet": 1135,
    "vgg-a": 7609,
    "nin": 1100,
    "googlenet": 1583,
    "resnet-50": 4089,
    "resnet-152": 11514,
}
DEEP = ("googlenet", "resnet-50", "resnet-152")
EACH = [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in PARAMETERS]
LIGHT = ("tiny", "fc", "lenet", "cifarnet", "nin-32")


def classes(name: str) -> int:
    return 1000 if Model(name=name).input[1:] == (224, 224) else 10


def built(name: str) -> nn.Module:
    return Model(name=name).build(classes(name))


def flat(name: str) -> FlatModel:
    return FlatModel(lambda: built(name))


def weights_of(name: str, seed: int) -> torch.Tensor:
    return initial_weights(Model(name=name), seed, classes(name))


def test_every_network_for_images_is_in_the_tables() -> None:
    assert PARAMETERS.keys() == MULTIPLY_ADDS.keys() == MODELS.keys() - {"gpt", "layers", "vector", *known.names()}


@pytest.mark.parametrize("name", EACH)
def test_parameter_count_and_scores(name: str) -> None:
    with torch.device("meta"):  # shapes alone: ResNet-152 in half a second
        model = built(name)
        scores = model(torch.empty(2, *Model(name=name).input))
    assert layout(model).size == PARAMETERS[name]
    kept = {key.rpartition(".")[2] for key in model.state_dict().keys() - dict(model.named_parameters()).keys()}
    assert kept <= {"running_mean", "running_var", "num_batches_tracked"}  # workers share it: no other state
    assert scores.shape == (2, classes(name))
    assert [layer.shape[0] for layer in layout(model) if layer.last] == [classes(name)] * 2


@pytest.mark.parametrize("name", EACH)
def test_forward_flops(name: str) -> None:
    with torch.device("meta"):
        found = forward_flops(built(name), torch.empty(1, *Model(name=name).input))
    assert found / 2e6 == pytest.approx(MULTIPLY_ADDS[name], rel=5e-4)


def test_cifarnet_layers() -> None:
    found = layout(built("cifarnet"))
    assert [(layer.name, layer.shape) for layer in found if not layer.bias] == [
        ("conv1.weight", (64, 3, 5, 5)),
        ("conv2.weight", (64, 64, 5, 5)),
        ("local3.weight", (384, 2304)),
        ("local4.weight", (192, 384)),
        ("softmax.weight", (10, 192)),
    ]
    assert [layer.name for layer in found if layer.last] == ["softmax.weight", "softmax.bias"]


@pytest.mark.parametrize("name", [*LIGHT, pytest.param("vgg-a-32", marks=pytest.mark.slow)])
def test_a_model_starts_undecided_and_every_parameter_has_a_gradient(name: str) -> None:
    check_gradient(name)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PARAMETERS if name not in (*LIGHT, "vgg-a-32")])
def test_a_large_model_too(name: str) -> None:
    check_gradient(name)


def check_gradient(name: str) -> None:
    model = flat(name)
    model.load(weights_of(name, seed=0))
    images = torch.randn(2, *Model(name=name).input, generator=torch.Generator().manual_seed(0))
    with model.training(np.random.default_rng(0)):
        for part in model.module.modules():
            if isinstance(part, nn.Dropout):
                part.eval()  # what is left of two images would be larger by chance
        loss = functional.cross_entropy(model(images), torch.tensor([1, 2]))
    assert loss.item() == pytest.approx(log(classes(name)), rel=0.25)
    gradients = torch.autograd.grad(loss, model.parameters)
    assert all(gradient.isfinite().all() for gradient in gradients)
    # A ResNet's blocks start as their shortcuts, so that a block's own weights move from the second step on.
    still = [layer.name for layer, gradient in zip(model.layout, gradients, strict=True) if not gradient.any()]
    assert all(re.search(r"conv\d_\d+\.(conv|norm)[123]\.", layer) for layer in still)


def test_a_model_that_no_memory_holds_is_named() -> None:
    with pytest.raises(InputError, match="model 'gpt': it does not fit into memory; make it smaller"):
        GPTOptions(name="gpt", width=4_000_000).build(10)


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown model 'cifarnt'; did you mean 'cifarnet'"):
        Model(name="cifarnt").build(10)


@pytest.mark.parametrize("name", ["tiny", "cifarnet", "lenet", "nin-32"])
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    first = weights_of(name, seed=3)
    torch.rand(5)  # moves the global generator on
    state = torch.random.get_rng_state()
    assert torch.equal(first, weights_of(name, seed=3))
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(first, weights_of(name, seed=4))


def test_cifarnet_starts_as_the_tutorial_does() -> None:
    weights = weights_of("cifarnet", seed=0)
    layers = {layer.name: weights[layer.slice] for layer in layout(built("cifarnet"))}
    assert layers["local3.weight"].abs().max() <= 0.08
    assert layers["local3.weight"].std() == pytest.approx(0.04 * 0.8796, rel=0.01)  # a normal cut at 2 deviations
    assert layers["local4.bias"].tolist() == pytest.approx([0.1] * 192)
    assert not layers["softmax.bias"].any()


def test_flat_model_computes_with_the_loaded_weights() -> None:
    model, weights = flat("tiny"), weights_of("tiny", seed=1)
    model.load(weights)
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    hidden_weight, hidden_bias, output_weight, output_bias = (
        weights[layer.slice].view(layer.shape) for layer in model.layout
    )
    pooled = images.view(2, 3, 6, 4, 6, 4).mean((3, 5)).flatten(1)
    expected = (pooled @ hidden_weight.T + hidden_bias).relu() @ output_weight.T + output_bias
    torch.testing.assert_close(model(images), expected)


def test_loading_copies() -> None:
    model, weights = flat("tiny"), weights_of("tiny", seed=1)
    model.load(weights)
    before = model.parameters[0].detach().clone()
    weights.zero_()
    assert torch.equal(model.parameters[0], before)


def test_weights_of_another_size_are_refused() -> None:
    with pytest.raises(RuntimeError, match="size"):
        flat("tiny").load(torch.zeros(3))


def test_dropout_drops_within_training_alone_and_by_the_generator() -> None:
    model = flat("nin-32")
    model.load(weights_of("nin-32", seed=0))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def scores(seed: int | None) -> torch.Tensor:
        if seed is None:
            return model(images)
        with model.training(np.random.default_rng(seed)):
            return model(images)

    state = torch.random.get_rng_state()
    assert torch.equal(scores(1), scores(1))
    assert not torch.equal(scores(1), scores(2))
    assert not torch.equal(scores(1), scores(None))
    assert torch.equal(scores(None), scores(None))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("cifarnet", "cifar10"),
        ("mqgrad-cnn", "synthetic"),
        ("alexnet-32", "tiny-imagenet-32"),
        ("lenet", "mnist"),
        ("fc", "mnist"),
        ("alexnet", "imagenet"),
        ("cifarnet", "imagenet"),  # a small piece of each image, but it can be done
    ],
)
def test_a_model_takes_images_of_its_size_or_larger(model: str, dataset: str) -> None:
    check_fits(Model(name=model), Data(dataset=dataset))


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ("lenet", "cifar10", "'lenet' takes examples of 1x28x28, data set 'cifar10' has 3x32x32"),
        ("cifarnet", "mnist", "data set 'mnist' has 1x28x28; .*; models for the data set: fc, lenet$"),
        ("nin", "tiny-imagenet-32", "data sets for the model: imagenet;"),
        ("gpt", "cifar10", "'gpt' takes examples of 128, .*; data sets for the model: text;"),
        ("lenet", "cifar", "unknown data set 'cifar'; did you mean 'cifar10'"),
        ("lennet", "mnist", "unknown model 'lennet'; did you mean 'lenet'"),
    ],
)
def test_a_model_and_a_data_set_that_do_not_go_together_are_named(model: str, dataset: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_fits(Model(name=model), Data(dataset=dataset))
