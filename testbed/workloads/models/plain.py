"""The papers' networks that are plain sequences of layers. (The branching ones are in `deep`.)

Where a paper gives only a name and a parameter count, the docstring says which published network has that count.
AlexNet, VGG and NiN have batch normalisation after each convolution, as TernGrad trained such networks (section 4.2)
and WeightGrad seems to (5.1 gives its decay), in place of AlexNet's local response normalisation. Without it a short
run shows nothing: VGG-A for 32x32 on CIFAR-10, by plain SGD at batch 128 and rate 0.1, is at a loss of 1.93 after 60
steps with it and at 2.25 without.
"""

from __future__ import annotations

from torch import nn

from testbed.workloads.models.base import model
from testbed.workloads.models.lrn import LocalResponseNorm
from testbed.workloads.models.pooling import MaxPool
from testbed.workloads.models.stack import Stack, he_weights, truncated_normal_


@model("cifarnet", input=(3, 24, 24))
def cifarnet(classes: int) -> nn.Module:
    """TensorFlow's CIFAR-10 tutorial network on 3x24x24 images; 1,068,298 parameters for ten classes.

    conv1-pool-norm1-conv2-norm2-pool-local3-local4-softmax. TensorFlow's SAME pooling puts its padding at the
    end only, which is what `ceil_mode` does.
    """
    net = nn.Sequential()
    net.add_module("conv1", nn.Conv2d(3, 64, 5, padding=2))
    net.add_module("pool1", MaxPool(3, 2, ceil_mode=True))
    net.add_module("relu1", nn.ReLU())  # of maxima, the same as maxima of what it gives, of a quarter as many
    net.add_module("norm1", LocalResponseNorm(64, radius=4, alpha=0.001 / 9, beta=0.75, bias=1.0))
    net.add_module("conv2", nn.Conv2d(64, 64, 5, padding=2))
    net.add_module("relu2", nn.ReLU())
    net.add_module("norm2", LocalResponseNorm(64, radius=4, alpha=0.001 / 9, beta=0.75, bias=1.0))
    net.add_module("pool2", MaxPool(3, 2, ceil_mode=True))
    net.add_module("flatten", nn.Flatten())
    net.add_module("local3", nn.Linear(64 * 6 * 6, 384))
    net.add_module("relu3", nn.ReLU())
    net.add_module("local4", nn.Linear(384, 192))
    net.add_module("relu4", nn.ReLU())
    net.add_module("softmax", nn.Linear(192, classes))
    _tutorial_weights(net)
    return net


def _tutorial_weights(net: nn.Module, linear_deviation: float = 0.04) -> None:
    """Fill in the tutorial's initial weights: normals cut off at two deviations, and constant biases.

    Chosen over PyTorch's default because it learns sooner: on CIFAR-10 at batch 128, rate 0.1 falling to zero
    over 400 steps, the mean loss of the last 50 is 1.57 against 1.62.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    output = 1 / layers[-1].weight.shape[1]
    deviations = (0.05, 0.05, linear_deviation, linear_deviation, output)
    biases = (0.0, 0.1, 0.1, 0.1, 0.0)
    for layer, deviation, bias in zip(layers, deviations, biases, strict=True):
        truncated_normal_(layer.weight, deviation)
        nn.init.constant_(layer.get_parameter("bias"), bias)


@model("tiny", input=(3, 24, 24))
def tiny(classes: int) -> nn.Module:
    """A network for smoke runs and tests: 4x4 average pooling, one hidden layer of 32; 3,818 parameters."""
    net = nn.Sequential()
    net.add_module("pool", nn.AvgPool2d(4))
    net.add_module("flatten", nn.Flatten())
    net.add_module("hidden", nn.Linear(3 * 6 * 6, 32))
    net.add_module("relu", nn.ReLU())
    net.add_module("output", nn.Linear(32, classes))
    return net


@model("fc", input=(1, 28, 28))
def fc(classes: int) -> nn.Module:
    """ISGQ's fully connected network 784-1000-300-100-10 (section 5); 1,116,410 parameters for ten classes.

    The paper says 1.16 million of it; its layer sizes give 1.12.
    """
    return he_weights(Stack(1).flatten(28 * 28).linear(1000).linear(300).linear(100).linear(classes, relu=False))


@model("lenet", input=(1, 28, 28))
def lenet(classes: int) -> nn.Module:
    """TensorFlow's MNIST tutorial network, its LeNet; 1,663,370 parameters for ten classes.

    ISGQ's count, 1.66 million (section 5). TernGrad names LeNet without sizes (section 4.1); it shares this one.
    """
    net = Stack(1).conv(32, 5).pool().conv(64, 5).pool()
    return he_weights(net.flatten(7 * 7).linear(512).linear(classes, relu=False))


@model("mqgrad-cnn", input=(3, 28, 28))
def mqgrad_cnn(classes: int) -> nn.Module:
    """MQGrad's network on 3x28x28 images (section 5.1); 16,224,586 parameters for ten classes.

    conv 5x5x64 twice, 3136-2304-3840-classes, local response normalisation after each max-pooling. 3136 is 64 maps of
    7x7, which 28x28 images give; the normalisation and the initial weights are the CIFAR-10 tutorial's, but for the two
    large layers: at the tutorial's deviation of 0.04 the paper's rate of 0.2 diverges, at AlexNet's 0.01 it does not.
    """
    net = Stack(3)
    for _ in range(2):
        net.conv(64, 5).pool(3, 2).normalise(radius=4, alpha=0.001 / 9, beta=0.75, bias=1.0)
    net.flatten(7 * 7).linear(2304).linear(3840).linear(classes, relu=False)
    _tutorial_weights(net, linear_deviation=0.01)
    return net


@model("alexnet", input=(3, 224, 224))
def alexnet(classes: int) -> nn.Module:
    """AlexNet (Krizhevsky et al. 2012, section 3.5) on 3x224x224 images; 62,379,720 parameters for 1,000 classes.

    In one tower: the two of the paper, cut apart for want of memory, would have 61 million; ISGQ counts 62.4.
    """
    net = Stack(3, batch_norm=True).conv(96, 11, stride=4, padding=2).pool(3, 2).conv(256, 5).pool(3, 2)
    net.conv(384, 3).conv(384, 3).conv(256, 3).pool(3, 2)
    net.flatten(6 * 6).linear(4096).dropout(0.5).linear(4096).dropout(0.5).linear(classes, relu=False)
    return he_weights(net)


@model("alexnet-32", input=(3, 32, 32))
def alexnet_32(classes: int) -> nn.Module:
    """AlexNet for 3x32x32 images; 23,273,418 parameters for ten classes, nine tenths of them in its linear layers.

    The usual small form of Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks": its
    channels and its two layers of 4096, every kernel 3x3, the first at stride 2.
    """
    net = Stack(3, batch_norm=True).conv(64, 3, stride=2).pool().conv(192, 3).pool()
    net.conv(384, 3).conv(256, 3).conv(256, 3).pool()
    net.flatten(2 * 2).linear(4096).dropout(0.5).linear(4096).dropout(0.5).linear(classes, relu=False)
    return he_weights(net)


@model("vgg-a", input=(3, 224, 224))
def vgg_a(classes: int) -> nn.Module:
    """VGG-A (Simonyan & Zisserman 2015, table 1) on 3x224x224 images; 132,866,088 parameters for 1,000 classes."""
    net = _vgg_convolutions().flatten(7 * 7).linear(4096).dropout(0.5).linear(4096).dropout(0.5)
    return he_weights(net.linear(classes, relu=False))


@model("vgg-a-32", input=(3, 32, 32))
def vgg_a_32(classes: int) -> nn.Module:
    """VGG-A for 3x32x32 images: its convolutions and one linear layer; 9,228,362 parameters for ten classes."""
    return he_weights(_vgg_convolutions().flatten().linear(classes, relu=False))


def _vgg_convolutions() -> Stack:
    net = Stack(3, batch_norm=True)
    for channels in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for outputs in channels:
            net.conv(outputs, 3)
        net.pool()
    return net


@model("nin", input=(3, 224, 224))
def nin(classes: int) -> nn.Module:
    """Network in Network on 3x224x224 images, as in Caffe's model zoo; 7,599,432 parameters for 1,000 classes.

    That model is the 29 MB one of the thresholded synchronisation (section 4). There a ReLU follows the class maps too,
    under which a class can die for good; here they are averaged as they are.
    """
    net = Stack(3, batch_norm=True).conv(96, 11, stride=4, padding=0).conv(96, 1).conv(96, 1).pool(3, 2)
    net.conv(256, 5).conv(256, 1).conv(256, 1).pool(3, 2)
    net.conv(384, 3).conv(384, 1).conv(384, 1).pool(3, 2).dropout(0.5)
    net.conv(1024, 3).conv(1024, 1).conv(classes, 1, relu=False).average()
    return he_weights(net, output_deviation=None)  # averaging makes the scores small enough


@model("nin-32", input=(3, 32, 32))
def nin_32(classes: int) -> nn.Module:
    """Network in Network on 3x32x32 images, for CIFAR-10 (Lin et al. 2014, section 4.2); 968,394 parameters."""
    net = Stack(3, batch_norm=True).conv(192, 5).conv(160, 1).conv(96, 1).pool(3, 2).dropout(0.5)
    net.conv(192, 5).conv(192, 1).conv(192, 1).pool(3, 2).dropout(0.5)
    net.conv(192, 3).conv(192, 1).conv(classes, 1, relu=False).average()
    return he_weights(net, output_deviation=None)
