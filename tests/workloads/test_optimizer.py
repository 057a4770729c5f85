"""Optimizers equal torch.optim's to the last bit; clipping and the moving average by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.optimizer import EMA, SGD, Adam, AdamW, Optimizer, clip_global_norm

SIZE = 1000
RATES = [0.1, 0.1, 0.05, 0.02, 0.01]


def gradients() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(SIZE, generator=random) for _ in RATES]


def start() -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("optimizer", "reference", "options"),
    [
        (SGD(), torch.optim.SGD, {}),
        (SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
        (SGD(momentum=0.9, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (Adam(), torch.optim.Adam, {}),
        (Adam(0.5, 0.9, 1e-3), torch.optim.Adam, {"betas": (0.5, 0.9), "eps": 1e-3}),
        (AdamW(), torch.optim.AdamW, {}),
        (AdamW(beta2=0.95, weight_decay=0.1), torch.optim.AdamW, {"betas": (0.9, 0.95), "weight_decay": 0.1}),
    ],
    ids=lambda value: repr(value) if isinstance(value, SGD | Adam) else "",
)
def test_equals_torch(optimizer: Optimizer, reference: type, options: dict[str, object]) -> None:
    weights, expected = start(), start()
    state = optimizer.start(weights)
    theirs = reference([expected], lr=1.0, foreach=False, **options)
    for gradient, rate in zip(gradients(), RATES, strict=True):
        optimizer.update(state, weights, gradient, rate)
        expected.grad, theirs.param_groups[0]["lr"] = gradient, rate
        theirs.step()
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), Adam(), AdamW()], ids=repr)
def test_updates_leave_the_gradient_alone(optimizer: Optimizer) -> None:
    weights, gradient = start(), gradients()[0]
    optimizer.update(optimizer.start(weights), weights, gradient, 0.1)
    assert torch.equal(gradient, gradients()[0])


def test_decoupled_decay_is_not_scaled_by_the_gradients() -> None:
    """What L2 decay would be: the same for a weight with large gradients and for one with small."""
    weights = torch.ones(2)
    AdamW(weight_decay=0.5).update(AdamW().start(weights), weights, torch.tensor([1e3, 1e-3]), 0.1)
    assert weights.tolist() == pytest.approx([1 - 0.05 - 0.1] * 2, abs=1e-4)


def test_momentum_that_is_applied_elsewhere_is_left_out() -> None:
    assert SGD(momentum=0.9, nesterov=True).without_momentum == SGD()
    assert AdamW(weight_decay=0.1).without_momentum == AdamW(weight_decay=0.1)


def test_what_adam_knows_of_the_weights_importance() -> None:
    weights = start()
    assert SGD().importance(SGD().start(weights)) is None
    state = AdamW().start(weights)
    assert AdamW().importance(state) is None
    AdamW().update(state, weights, torch.full((SIZE,), 2.0), 0.1)
    assert AdamW().importance(state).tolist() == pytest.approx([2 * 0.001**0.5] * SIZE, rel=1e-5)


@given(scale=st.floats(1e-3, 1e3), limit=st.floats(1e-2, 1e2))
def test_clipping_bounds_the_norm_and_keeps_the_direction(scale: float, limit: float) -> None:
    gradient = start() * scale
    clipped = gradient.clone()
    norm = clip_global_norm(clipped, limit)
    assert norm == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert float(clipped.norm()) == pytest.approx(min(norm, limit), rel=1e-4)
    torch.testing.assert_close(clipped / clipped.norm(), gradient / gradient.norm())


def test_clipping_does_not_touch_a_short_gradient() -> None:
    gradient = torch.tensor([3.0, 4.0])
    assert clip_global_norm(gradient, 5.0) == 5.0
    assert gradient.tolist() == [3.0, 4.0]


def test_ema_follows_tensorflows_correction() -> None:
    average = EMA.of(torch.zeros(1))
    average.update(torch.ones(1))  # decay 1/10
    assert average.average.item() == pytest.approx(0.9)
    average.update(torch.full((1,), 2.0))  # decay 2/11
    assert average.average.item() == pytest.approx(0.9 * 2 / 11 + 2.0 * 9 / 11)


def test_ema_ends_at_its_decay() -> None:
    average = EMA(torch.zeros(1), decay=0.99, updates=10_000)
    average.update(torch.ones(1))
    assert average.average.item() == pytest.approx(0.01)


def test_ema_starts_as_a_copy() -> None:
    weights = torch.ones(2)
    average = EMA.of(weights)
    weights.zero_()
    assert average.average.tolist() == [1.0, 1.0]
