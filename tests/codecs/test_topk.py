"""Top-k: exactly the largest magnitudes of each layer, whatever the values are and whatever the sample was."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparse_vectors import LAYOUT, nbytes, vector, vectors

from testbed.codecs.kernels import topk
from testbed.codecs.topk import TopK
from testbed.errors import CodecError
from testbed.layout import Layout


def one_layer(x: torch.Tensor) -> Layout:
    return Layout.of([("w.weight", (1, x.numel()))])


def check_largest(x: torch.Tensor, sent: torch.Tensor, wanted: int) -> None:
    """What is sent of a layer is its largest magnitudes, as they are."""
    kept = sent != 0
    assert torch.equal(sent[kept], x[kept])
    assert int(kept.sum()) == min(wanted, int((x != 0).sum()))
    if kept.any():
        assert x[kept].abs().min() >= x[~kept].abs().max().nan_to_num(0) if (~kept).any() else True


@given(vectors, st.sampled_from([1e-6, 0.001, 0.1, 0.25, 0.999, 1.0]))
def test_the_largest_of_every_layer(x: torch.Tensor, kept: float) -> None:
    codec = TopK(LAYOUT, kept)
    sent = codec.decode(codec.encode(x))
    for layer in LAYOUT:
        check_largest(x[layer.slice], sent[layer.slice], ceil(kept * layer.size))


@pytest.mark.parametrize("kept", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("kind", ["normal", "cauchy", "ties", "equal", "zero", "one", "sorted", "periodic"])
def test_the_largest_of_a_sampled_layer(kind: str, kept: float) -> None:
    size = 200_003
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(size, generator=generator)
    if kind == "cauchy":
        x = x / torch.randn(size, generator=generator)
    elif kind == "ties":
        x = x.round()
    elif kind == "equal":
        x = torch.full((size,), -2.5)
    elif kind in ("zero", "one"):
        x = torch.zeros(size)
        x[77] = float(kind == "one")
    elif kind == "sorted":
        x = x.sort().values
    elif kind == "periodic":  # every 12th is large: the sample's stretches are 12 long
        x[::12] *= 100
    codec = TopK(one_layer(x), kept)
    check_largest(x, codec.decode(codec.encode(x)), ceil(kept * size))


def test_the_sample_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that misses all that is large, or that sees nothing else."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    codec = TopK(one_layer(x), 0.001)
    expected = codec.encode(x)
    for order in (x.abs().argsort(), x.abs().argsort(descending=True)):
        sample = order[: topk.SAMPLE].numpy().astype(np.uint32)
        monkeypatch.setattr(topk, "_sample", lambda size, sample=sample: sample)
        for found, wanted in zip(codec.encode(x), expected, strict=True):
            assert np.array_equal(found, wanted)


def test_of_equal_magnitudes_the_first_are_taken() -> None:
    x = torch.tensor([0.0, 1.0, -2.0, 1.0, 2.0, -1.0])
    codec = TopK(one_layer(x), 0.5)
    assert codec.decode(codec.encode(x)).tolist() == [0, 1, -2, 0, 2, 0]


@pytest.mark.slow
def test_beyond_2_to_the_24_elements() -> None:
    """Float32 could not count them: every place is exact."""
    size = (1 << 24) + 12_345
    x = torch.full((size,), 1e-3)
    places = torch.from_numpy(np.random.default_rng(0).choice(size // 997, size // 1000 + 1, replace=False)) * 997
    x[places] = 1 + places.float() / size
    codec = TopK(one_layer(x), 0.001)
    assert np.array_equal(codec.unpack(codec.encode(x)).places, places.sort().values.numpy())


def test_the_bytes_of_cifarnets_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = TopK(cifarnet, 0.001)
    counts, gaps, *_, fractions = buffers = codec.encode(gradient)
    assert counts.tolist() == [5, 1, 103, 1, 885, 1, 74, 1, 2, 1]
    kept = sum(counts.tolist())
    assert fractions.nbytes == 3 * kept
    assert 8 * (gaps.nbytes - len(cifarnet)) <= 12 * kept
    assert 600 * nbytes(buffers) < 4 * cifarnet.size
    half = TopK(cifarnet, 0.001, values="float16").encode(gradient)
    signs = TopK(cifarnet, 0.001, values="ternary").encode(gradient)
    assert nbytes(half) == counts.nbytes + gaps.nbytes + 2 * kept
    assert nbytes(signs) == counts.nbytes + gaps.nbytes + 4 * len(cifarnet) + -(-kept // 8)


def test_dense_biases_send_all_they_have(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = TopK(cifarnet, 0.001, dense_biases=True)
    sent = codec.decode(codec.encode(gradient))
    for layer in cifarnet:
        if layer.bias:
            assert torch.equal(sent[layer.slice], gradient[layer.slice])
        else:
            assert int((sent[layer.slice] != 0).sum()) == ceil(layer.size / 1000)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 9000])
def test_what_is_not_finite_names_its_layer(value: float, place: int) -> None:
    x = vector(0)
    x[LAYOUT.layers[5].offset + place] = value
    with pytest.raises(CodecError, match=r"layer f\.weight: NaN or infinity"):
        TopK(LAYOUT, 0.001).encode(x)


@pytest.mark.parametrize("kept", [0.0, -0.5, 1.5, float("nan")])
def test_a_fraction_that_is_none_is_refused(kept: float) -> None:
    with pytest.raises(CodecError, match="kept fraction"):
        TopK(LAYOUT, kept)
