"""The matrix-product normalisation is torch's, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from testbed.workloads.models.lrn import LocalResponseNorm


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 20),
    radius=st.integers(0, 6),
    beta=st.sampled_from([0.5, 0.75, 1.0]),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_equals_torch(channels: int, radius: int, beta: float, scale: float) -> None:
    alpha, size = 0.02, 2 * radius + 1
    random = torch.Generator().manual_seed(channels)
    x = (scale * torch.randn(3, channels, 4, 5, generator=random)).requires_grad_()
    gradient = torch.randn(x.shape, generator=random)
    ours = LocalResponseNorm(channels, radius, alpha, beta, bias=2.0)(x)
    theirs = nn.LocalResponseNorm(size, alpha * size, beta, 2.0)(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, x, gradient), torch.autograd.grad(theirs, x, gradient))


def test_gradient_is_the_derivative() -> None:
    norm = LocalResponseNorm(6, radius=2, alpha=0.3, beta=0.75, bias=1.0).double()
    x = torch.randn(2, 6, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(norm, x)


def test_has_no_parameters_and_no_saved_state() -> None:
    norm = LocalResponseNorm(8, radius=4, alpha=0.1, beta=0.75, bias=1.0)
    assert not list(norm.parameters())
    assert not norm.state_dict()


@pytest.mark.parametrize("channels", [1, 64])
def test_zero_input_has_zero_output(channels: int) -> None:
    norm = LocalResponseNorm(channels, radius=4, alpha=0.1, beta=0.75, bias=1.0)
    assert not norm(torch.zeros(1, channels, 2, 2)).any()
