"""The branching networks: GoogLeNet and the ResNets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testbed.workloads.models.base import model
from testbed.workloads.models.pooling import MaxPool
from testbed.workloads.models.stack import Stack, he_weights


class Inception(nn.Module):
    """Four branches side by side (Szegedy et al. 2015, figure 2b): 1x1, 1x1-3x3, 1x1-5x5, pooling-1x1.

    Parameters
    ----------
    inputs
        Channels.
    sizes
        Channels of: the 1x1; the 1x1 before the 3x3, the 3x3; the 1x1 before the 5x5, the 5x5; the pooled 1x1.
    """

    def __init__(self, inputs: int, sizes: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = sizes
        self.one = Stack(inputs, batch_norm=True).conv(one, 1)
        self.three = Stack(inputs, batch_norm=True).conv(before_three, 1).conv(three, 3)
        self.five = Stack(inputs, batch_norm=True).conv(before_five, 1).conv(five, 5)
        self.pooled = Stack(inputs, batch_norm=True).conv(pooled, 1)
        self.width = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        """Return the branches' channels one after another."""
        around = functional.max_pool2d(x, 3, 1, 1)
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(around)], 1)


INCEPTION = {  # table 1 of the paper
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


@model("googlenet", input=(3, 224, 224))
def googlenet(classes: int) -> nn.Module:
    """GoogLeNet (Szegedy et al. 2015) on 3x224x224 images; 7,005,832 parameters for 1,000 classes.

    With batch normalisation and without the auxiliary classifiers, as in TernGrad (section 4.2).
    """
    net = Stack(3, batch_norm=True).conv(64, 7, stride=2).pool(3, 2).conv(64, 1).conv(192, 3).pool(3, 2)
    for name, sizes in INCEPTION.items():
        if name in ("4a", "5a"):
            net.add_module(f"pool{name[0]}", MaxPool(3, 2, ceil_mode=True))
        block = Inception(net.width, sizes)
        net.add_module(f"inception{name}", block)
        net.width = block.width
    return he_weights(net.average().dropout(0.4).linear(classes, relu=False))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 to four times the channels, beside a shortcut (He et al. 2016, figure 5 right).

    The stride is the 3x3's, as in every recent implementation.
    """

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * channels
        self.conv1, self.norm1 = _convolution(inputs, channels, 1)
        self.conv2, self.norm2 = _convolution(channels, channels, 3, stride)
        self.conv3, self.norm3 = _convolution(channels, outputs, 1)
        # Every block starts as its shortcut (Goyal et al. 2017, section 5.1): 50 layers up learn from the first step.
        nn.init.zeros_(self.norm3.weight)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, 4 * channels, height / stride, width / stride]."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


def _resnet(blocks: tuple[int, int, int, int], classes: int) -> nn.Module:
    net = nn.Sequential()
    net.add_module("conv1", nn.Sequential(*_convolution(3, 64, 7, 2), nn.ReLU(), MaxPool(3, 2, 1)))
    inputs = 64
    for stage, count in enumerate(blocks):
        channels = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            net.add_module(f"conv{stage + 2}_{block + 1}", Bottleneck(inputs, channels, stride))
            inputs = 4 * channels
    net.add_module("average", nn.AdaptiveAvgPool2d(1))
    net.add_module("flatten", nn.Flatten())
    net.add_module("fc", nn.Linear(inputs, classes))
    return he_weights(net)


@model("resnet-50", input=(3, 224, 224))
def resnet_50(classes: int) -> nn.Module:
    """ResNet-50 (He et al. 2016, table 1) on 3x224x224 images; 25,557,032 parameters for 1,000 classes."""
    return _resnet((3, 4, 6, 3), classes)


@model("resnet-152", input=(3, 224, 224))
def resnet_152(classes: int) -> nn.Module:
    """ResNet-152 (He et al. 2016, table 1) on 3x224x224 images; 60,192,808 parameters for 1,000 classes."""
    return _resnet((3, 8, 36, 3), classes)
