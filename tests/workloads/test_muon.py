"""Muon: what is orthogonal, what it scales with, and whom it leaves alone."""

from __future__ import annotations

import pytest
import torch

from testbed.layout import Layout
from testbed.workloads.muon import Muon, orthogonal
from testbed.workloads.optimizer import SGD, AdamW

LAYOUT = Layout.of(
    [
        ("embed.weight", (9, 6)),
        ("a.weight", (24, 10)),
        ("a.bias", (24,)),
        ("conv.weight", (8, 3, 2, 2)),
        ("b.w", (5, 8)),
    ]
)
SHAPES = [(24, 10), (8, 12)]


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (20, 20), (1, 7)])
def test_a_matrix_becomes_nearly_orthogonal_with_the_same_singular_vectors(shape: tuple[int, int]) -> None:
    n = min(shape)
    u, v = torch.linalg.qr(gaussian(shape[0], n)).Q, torch.linalg.qr(gaussian(shape[1], n, seed=1)).Q
    found = orthogonal((u * torch.logspace(0, -2, n)) @ v.T)
    inner = u.T @ found @ v
    assert torch.allclose(inner, torch.diag(inner.diagonal()), atol=1e-3)
    assert 0.95 < float(inner.diagonal().min()) <= float(inner.diagonal().max()) < 1.16
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


def test_inner_matrices_move_by_the_root_of_their_sides_and_the_others_as_told() -> None:
    muon = Muon(LAYOUT, SGD(momentum=0.5), 3.0, named={"embed"}, momentum=0.9)
    assert [layer.name for layer in muon.matrices] == ["a.weight", "conv.weight"]
    weights, gradient = gaussian(LAYOUT.size), gaussian(LAYOUT.size, seed=1)
    before, state = weights.clone(), muon.start(weights)
    muon.update(state, weights, gradient, 0.1)
    moved = (before - weights) / 0.1
    for layer, (out, rest) in zip(muon.matrices, SHAPES, strict=True):
        norm = torch.linalg.matrix_norm(moved[layer.slice].view(out, rest), 2)
        assert float(norm) == pytest.approx((out / rest) ** 0.5, rel=0.16)
    torch.testing.assert_close(moved[muon.rest], 3.0 * gradient[muon.rest], rtol=1e-4, atol=1e-5)


def test_momentum_adds_up_and_weights_decay() -> None:
    muon = Muon(LAYOUT, AdamW(weight_decay=0.2), named=(), momentum=0.5)
    weights, gradient = torch.ones(LAYOUT.size), gaussian(LAYOUT.size)
    state = muon.start(weights)
    for _ in range(3):
        muon.update(state, weights, gradient, 0.0)
    torch.testing.assert_close(state.velocity, 1.75 * gradient)
    assert torch.equal(weights, torch.ones(LAYOUT.size)), "a rate of 0 changes nothing"
    plain = Muon(LAYOUT, AdamW(weight_decay=0.0), named=(), momentum=0.5)
    two = [torch.ones(LAYOUT.size) for _ in range(2)]
    for each, vector in zip((muon, plain), two, strict=True):
        each.update(each.start(vector), vector, gradient, 0.1)
    torch.testing.assert_close(two[1] - two[0], torch.full((LAYOUT.size,), 0.1 * 0.2))


def test_what_it_counts() -> None:
    muon = Muon(LAYOUT, SGD(), named={"embed"}, momentum=0.9)
    products = [2 * 10 * 10 * 24 * 2 + 2 * 10**3, 2 * 8 * 8 * 12 * 2 + 2 * 8**3]
    assert muon.flops == 5 * sum(products)
    assert muon.nbytes == 4 * (7 * (240 + 96) + 3 * (54 + 24 + 40))
