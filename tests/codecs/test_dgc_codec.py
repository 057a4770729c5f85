"""What a DGC worker sends and remembers, against the paper's algorithm written out."""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_vectors import LAYOUT, nbytes, vector, vectors

from testbed.codecs.base import Key
from testbed.codecs.dgc import DGC
from testbed.errors import CodecError
from testbed.layout import Layout

VALUES = ["float32", "float16", "ternary"]


def key(step: int) -> Key:
    return Key(0, 0, step)


def dgc(layout: Layout = LAYOUT, **options: Any) -> DGC:
    return DGC(layout, **({"workers": 4, "warmup_epochs": 0, "sparsity": 0.9} | options))


def largest(v: torch.Tensor, kept: float) -> torch.Tensor:
    """Mask of each layer's largest magnitudes; the vectors here have no equal ones."""
    mask = torch.zeros(v.numel(), dtype=torch.bool)
    for layer in LAYOUT:
        count = ceil(round(kept * layer.size, 6))
        mask[layer.offset + v[layer.slice].abs().topk(count).indices] = True
    return mask & (v != 0)


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_papers_algorithm(momentum: float, nesterov: bool, masking: bool) -> None:
    """Algorithm 4 of the appendix, with local clipping, momentum correction and masking."""
    codec = dgc(momentum=momentum, nesterov=nesterov, masking=masking, clip_norm=10.0)
    memory = codec.start()
    u, v = torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.size)
    for step in range(6):
        gradient = vector(step, filled=1.0)
        sent = codec.decode(codec.encode(gradient, key(step), memory))
        norm = float(gradient.norm())
        assert norm > 10.0 * sqrt(4)
        clipped = gradient * (10.0 * sqrt(4) / norm)
        u = momentum * u + clipped
        v = v + (clipped + momentum * u if nesterov else u)
        mask = largest(v, 0.1)
        torch.testing.assert_close(sent, v * mask, rtol=1e-4, atol=1e-6)
        v[mask] = 0
        if masking:
            u[mask & _sparse()] = 0
        torch.testing.assert_close(memory.total, v, rtol=1e-4, atol=1e-6)
        if momentum:
            torch.testing.assert_close(memory.velocity, u, rtol=1e-4, atol=1e-6)


def _sparse() -> torch.Tensor:
    """Layers of one element send all they have."""
    mask = torch.ones(LAYOUT.size, dtype=torch.bool)
    mask[LAYOUT.layers[0].slice] = False
    return mask


@settings(max_examples=40)
@given(st.lists(vectors, min_size=1, max_size=4), st.sampled_from(VALUES), st.sampled_from([0.5, 0.999]))
def test_what_is_accumulated_is_sent_or_kept(xs: list[torch.Tensor], values: str, sparsity: float) -> None:
    """Without momentum: v + gradient == sent + v', to the last bit where values are float32."""
    codec = dgc(sparsity=sparsity, momentum=0.0, values=values)
    memory = codec.start()
    for step, x in enumerate(xs):
        before = memory.total.clone()
        sent = codec.decode(codec.encode(x, key(step), memory))
        if values == "float32":
            assert torch.equal(sent + memory.total, before + x)
            assert bool((memory.total[sent != 0] == 0).all())
        else:
            error = (sent.double() + memory.total - (before + x).double()).abs()
            assert bool((error <= torch.maximum(sent.abs(), (before + x).abs()) * 2.0**-24 + 1e-45).all())


def test_no_clipping_below_the_norm() -> None:
    x = vector(0)
    codec = dgc(sparsity=0.0, momentum=0.0, clip_norm=0.51 * float(x.norm()))
    assert torch.equal(codec.decode(codec.encode(x, key(0), codec.start())), x)


def test_without_sparsity_it_is_momentum_sgd() -> None:
    """Where everything is sent, masking would take the momentum away: it is left out there."""
    codec = dgc(sparsity=0.0, momentum=0.5)
    memory, u = codec.start(), torch.zeros(LAYOUT.size)
    for step in range(3):
        u = 0.5 * u + vector(step)
        assert torch.equal(codec.decode(codec.encode(vector(step), key(step), memory)), u)


def test_dense_biases_keep_their_momentum(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = dgc(cifarnet, momentum=0.9, dense_biases=True)
    memory = codec.start()
    codec.encode(gradient, key(0), memory)
    for layer in cifarnet:
        moving = memory.velocity[layer.slice] != 0
        assert int((~moving).sum()) == (0 if layer.bias else ceil(layer.size / 10))


def test_warm_up_is_exponential() -> None:
    codec = dgc(warmup_epochs=4, epoch_steps=10, sparsity=0.999)
    sparsity = [1 - codec.kept_at(step) for step in (0, 9, 10, 20, 30, 39, 40, 1000)]
    assert sparsity == pytest.approx([0.75, 0.75, 0.9375, 0.984375, 0.99609375, 0.99609375, 0.999, 0.999])
    longer = dgc(warmup_epochs=8, sparsity=0.999)
    assert [longer.kept_at(epoch) for epoch in (0, 1, 7)] == pytest.approx([0.5, 0.25, 0.00390625])
    assert dgc(warmup_epochs=4, sparsity=0.9).kept_at(2) == pytest.approx(0.1)
    assert dgc(warmup_epochs=0, sparsity=0.999).kept_at(0) == pytest.approx(0.001)


def test_messages_shrink_with_the_warm_up(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = dgc(cifarnet, warmup_epochs=4, epoch_steps=1, sparsity=0.999)
    memory = codec.start()
    sizes = [nbytes(codec.encode(gradient, key(step), memory)) for step in range(5)]
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2] > 8 * sizes[3] > 8 * sizes[4]
    assert 600 * sizes[4] < 4 * cifarnet.size


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_error_names_the_layer_and_leaves_the_memory(value: float) -> None:
    codec = dgc()
    memory = codec.start()
    codec.encode(vector(0), key(0), memory)
    before = memory.total.clone(), memory.velocity.clone()
    x = vector(1)
    x[LAYOUT.layers[6].offset] = value
    with pytest.raises(CodecError, match=r"layer last\.bias: NaN or infinity"):
        codec.encode(x, key(1), memory)
    assert torch.equal(memory.total, before[0])
    assert torch.equal(memory.velocity, before[1])


@pytest.mark.parametrize("options", [{"sparsity": 1.0}, {"sparsity": -0.1}, {"momentum": 1.0}])
def test_settings_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(CodecError, match=r"a (sparsity|momentum) is at least 0 and below 1"):
        dgc(**options)
