"""The papers' networks: layer sizes and names as the papers give them, initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from testbed.workloads import Model
from testbed.workloads.models import deep
from testbed.workloads.models import plain as networks
from testbed.workloads.models.base import layout


def weights(name: str, classes: int = 10) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        layers = layout(Model(name=name).build(classes))
    return {layer.name.removesuffix(".weight"): layer.shape for layer in layers if not layer.bias}


def test_isgqs_fully_connected_network() -> None:
    assert weights("fc") == {"fc1": (1000, 784), "fc2": (300, 1000), "fc3": (100, 300), "fc4": (10, 100)}


def test_mqgrads_network() -> None:
    assert weights("mqgrad-cnn") == {
        "conv1": (64, 3, 5, 5),
        "conv2": (64, 64, 5, 5),
        "fc3": (2304, 3136),
        "fc4": (3840, 2304),
        "fc5": (10, 3840),
    }


def test_alexnets_layers_carry_its_names() -> None:
    alexnet = weights("alexnet", 1000)
    assert list(alexnet) == ["conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"]
    assert alexnet["fc6"] == (4096, 256 * 6 * 6)


@pytest.mark.parametrize("name", ["vgg-a", "vgg-a-32"])
def test_vgg_a_has_eight_convolutions(name: str) -> None:
    shapes = [shape for layer, shape in weights(name).items() if layer.startswith("conv")]
    assert [shape[0] for shape in shapes] == [64, 128, 256, 256, 512, 512, 512, 512]
    assert {shape[2:] for shape in shapes} == {(3, 3)}


def test_googlenets_blocks_have_the_papers_channels() -> None:
    with torch.device("meta"):
        blocks = [block for block in deep.googlenet(1000) if isinstance(block, deep.Inception)]
    assert [block.width for block in blocks] == [256, 480, 512, 512, 512, 528, 832, 832, 1024]


@pytest.mark.parametrize(("name", "layers"), [("resnet-50", 50), ("resnet-152", 152)])
def test_resnets_are_as_deep_as_they_say(name: str, layers: int) -> None:
    assert len([layer for layer in weights(name) if "shortcut" not in layer]) == layers


def test_he_weights() -> None:
    torch.manual_seed(0)
    net = networks.lenet(10)
    deviations = {name: float(p.detach().std()) for name, p in net.named_parameters() if name.endswith("weight")}
    expected = {"conv1": (2 / 25) ** 0.5, "conv2": (2 / 800) ** 0.5, "fc3": (2 / 3136) ** 0.5, "fc4": 0.01}
    assert deviations == pytest.approx({f"{name}.weight": value for name, value in expected.items()}, rel=0.05)
    assert not any(p.any() for name, p in net.named_parameters() if name.endswith("bias"))


def test_a_residual_block_starts_as_its_shortcut() -> None:
    block = deep.Bottleneck(256, 64, stride=1)
    x = torch.randn(2, 256, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x.relu())
    nn.init.ones_(block.norm3.weight)
    assert not torch.equal(block(x), x.relu())
