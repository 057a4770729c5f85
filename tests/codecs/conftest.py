"""What the codec tests share: CifarNet's layout, small awkward layouts, vectors of given values."""

from __future__ import annotations

import pytest
import torch

from testbed.codecs import warm_up
from testbed.layout import Layout

CIFARNET = [
    ("conv1.weight", (64, 3, 5, 5)),
    ("conv1.bias", (64,)),
    ("conv2.weight", (64, 64, 5, 5)),
    ("conv2.bias", (64,)),
    ("fc1.weight", (384, 2304)),
    ("fc1.bias", (384,)),
    ("fc2.weight", (192, 384)),
    ("fc2.bias", (192,)),
    ("fc3.weight", (10, 192)),
    ("fc3.bias", (10,)),
]


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    warm_up()


@pytest.fixture(scope="session")
def cifarnet() -> Layout:
    return Layout.of(CIFARNET)


@pytest.fixture(scope="session")
def gradient(cifarnet: Layout) -> torch.Tensor:
    """A vector whose layers differ in size of values by orders of magnitude, as gradients do."""
    generator = torch.Generator().manual_seed(7)
    vector = torch.randn(cifarnet.size, generator=generator)
    for index, layer in enumerate(cifarnet):
        vector[layer.slice] *= 10.0 ** (-index / 2)
    return vector
