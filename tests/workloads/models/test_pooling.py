"""The quick max-pooling is torch's to the bit, forward and backward."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from testbed.workloads.models.pooling import MaxPool


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 20),
    size=st.integers(4, 13),
    kernel=st.integers(2, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    ceil_mode=st.booleans(),
    ties=st.booleans(),
)
def test_equals_torch(
    channels: int, size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, ties: bool
) -> None:
    random = torch.Generator().manual_seed(channels)
    x = torch.randn(3, channels, size, size + 1, generator=random)
    if ties:
        x = x.relu().round()
    x.requires_grad_()
    ours = MaxPool(kernel, stride, padding, ceil_mode)(x)
    theirs = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil_mode)(x)
    assert torch.equal(ours, theirs)
    gradient = torch.randn(ours.shape, generator=random)
    (our_back,), (their_back,) = (torch.autograd.grad(out, x, gradient) for out in (ours, theirs))
    assert torch.equal(our_back, their_back)


def test_takes_no_room_of_the_images_on_meta() -> None:
    with torch.device("meta"):
        assert MaxPool(3, 2)(torch.empty(1, 3, 224, 224)).shape == (1, 3, 111, 111)


def test_evaluates_without_a_gradient() -> None:
    with torch.no_grad():
        assert MaxPool(2, 2)(torch.ones(1, 1, 4, 4)).sum() == 4
