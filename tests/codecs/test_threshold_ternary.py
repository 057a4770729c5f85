"""Weights to ternary, plain and loss-aware."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs import ThresholdTernary
from testbed.errors import CodecError
from testbed.layout import Layout

LAYOUT = Layout.of([("a.weight", (103, 61)), ("a.bias", (61,)), ("b.weight", (5, 61)), ("b.bias", (5,))])
CODEC = ThresholdTernary(LAYOUT)
LAYER = LAYOUT.layers[0].slice


def weights(seed: int = 0) -> torch.Tensor:
    return torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed))


def weighted_error(w: torch.Tensor, q: torch.Tensor, importance: torch.Tensor) -> float:
    difference = (w[LAYER] - q[LAYER]).double()
    return float((importance[LAYER].double() * difference**2).sum())


def test_the_exact_bytes_of_cifarnets_weights(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = ThresholdTernary(cifarnet)
    assert codec.nbytes == 4 * 4 + 4 * (64 + 64 + 384 + 192 + 1930) + 960 + 20_480 + 176_948 + 14_746
    assert codec.nbytes == 223_686
    assert sum(b.nbytes for b in codec.encode(gradient)) == codec.nbytes
    assert ThresholdTernary(cifarnet, float_biases=False).nbytes == 221_028


def test_plain_keeps_what_is_above_seven_tenths_of_the_mean() -> None:
    w = weights()
    layer = w[LAYER].double()
    keep = layer.abs() > 0.7 * layer.abs().mean()
    alpha = layer.abs()[keep].mean()
    q = CODEC.quantize(w)
    assert torch.allclose(q[LAYER].double(), alpha * layer.sign() * keep, rtol=1e-6)
    assert torch.equal(q[LAYER.stop :], w[LAYER.stop :])  # biases and the last layer


def test_quantize_is_decode_of_encode() -> None:
    importance = weights(1).abs()
    assert torch.equal(CODEC.quantize(weights()), CODEC.decode(CODEC.encode(weights())))
    encoded = CODEC.encode(weights(), importance=importance)
    assert torch.equal(CODEC.quantize(weights(), importance), CODEC.decode(encoded))


def test_what_is_ternary_already_is_a_fixed_point() -> None:
    q = CODEC.quantize(weights())
    assert torch.allclose(CODEC.quantize(q), q, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 4.0))
def test_loss_aware_is_no_worse_than_plain_in_the_weighted_error(seed: int, spread: float) -> None:
    w = weights(seed)
    importance = torch.exp(spread * weights(seed + 1))
    plain = weighted_error(w, CODEC.quantize(w), importance)
    aware = weighted_error(w, CODEC.quantize(w, importance), importance)
    assert aware <= plain * (1 + 1e-6)


def test_loss_aware_ends_where_neither_alpha_nor_b_can_improve() -> None:
    w, importance = weights(), weights(1).abs()
    buffers = CODEC.encode(w, importance=importance)
    layer, d = w[LAYER].double(), importance[LAYER].double()
    b = CODEC.decode(buffers)[LAYER].sign().double()
    alpha = float(buffers[0][0])
    assert alpha == pytest.approx(float((d * b * layer).sum() / (d * b.abs()).sum()), rel=1e-6)
    assert torch.equal(b, layer.sign() * (layer.abs() > alpha / 2))


def test_equal_importance_beats_the_plain_rule_of_thumb() -> None:
    w, ones = weights(), torch.ones(LAYOUT.size)
    assert weighted_error(w, CODEC.quantize(w, ones), ones) < weighted_error(w, CODEC.quantize(w), ones)


def test_without_any_importance_the_plain_code_stands() -> None:
    assert torch.equal(CODEC.quantize(weights(), torch.zeros(LAYOUT.size)), CODEC.quantize(weights()))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_bad_importance_names_the_layer(value: float) -> None:
    importance = torch.ones(LAYOUT.size)
    importance[5] = value
    with pytest.raises(CodecError, match=r"layer a\.weight: an importance"):
        CODEC.encode(weights(), importance=importance)


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 1.0, 3.4e38])
@pytest.mark.parametrize("size", [0, 1, 5, 5121])
def test_layers_of_equal_magnitudes(size: int, value: float) -> None:
    layout = Layout.of([("w.weight", (1, size)), ("last.weight", (1, 1))])
    codec = ThresholdTernary(layout)
    w = torch.full((layout.size,), value)
    w[: size // 2] *= -1
    q = codec.quantize(w, torch.ones(layout.size))
    assert np.isfinite(q.numpy()).all()
    if value != 1e-45:  # 0.7 of the smallest float is the smallest float
        assert torch.allclose(q, w, rtol=1e-6)
