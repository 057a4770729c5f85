"""Every element the mean of its bin: what stays as it was, how far off it is, and how many bytes that takes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chunked import by_the_rule

from testbed.codecs.base import Key
from testbed.codecs.kernels.threads import CHUNK
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.statistical import Statistical
from testbed.errors import CodecError
from testbed.layout import Layout

LAYOUT = Layout.of([("a.weight", (30, 10)), ("a.bias", (30,)), ("none", (0, 3)), ("b.weight", (7, 1))])


def gaussian(size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_layer_keeps_its_sum_and_its_error_is_a_part_of_its_deviation(bits: int) -> None:
    vector = gaussian(LAYOUT.size) + 3
    codec = Statistical(LAYOUT, bits)  # type: ignore[arg-type]
    found = codec.decode(codec.encode(vector))
    for layer in LAYOUT:
        own, back = vector[layer.slice], found[layer.slice]
        torch.testing.assert_close(own.sum(), back.sum(), rtol=1e-5, atol=1e-4)
        if layer.size > 7:
            assert len(set(back.tolist())) <= 2**bits
            error = float((own - back).norm() / (own - own.mean()).norm())
            assert error < {2: 0.55, 4: 0.15, 8: 0.03}[bits]


def test_the_rule_to_the_letter() -> None:
    """Of 0, 0, 0, 10 the mean is 2.5 and the deviation 5: bins are 7.5 wide, and 0 and 10 lie in two of them."""
    codec = Statistical(Layout.of([("w", (4,))]))
    means, bins = codec.encode(torch.tensor([0.0, 0.0, 0.0, 10.0]))
    assert means.tolist() == [0, 0, 0, 10] and bins.tolist() == [0b11_10_10_10]
    assert codec.decode([means, bins]).tolist() == [0, 0, 0, 10]


@pytest.mark.parametrize(("bits", "rows"), [(2, True), (4, False), (8, True)])
def test_blocks_and_chunks_leave_no_trace(bits: Literal[2, 4, 8], rows: bool) -> None:
    """Nor does a layer that begins within a byte."""
    layout = Layout.of([("a.bias", (3,)), ("b.weight", (2, CHUNK // 2 + 1)), ("b.bias", (1,)), ("c.weight", (7, 1171))])
    codec, vector = Statistical(layout, bits, rows), gaussian(layout.size) + 1
    means, packed, values = by_the_rule(np.split(vector.numpy(), np.cumsum(codec.counts)[:-1]), bits)
    buffers = codec.encode(vector)
    assert [buffer.tobytes() for buffer in buffers] == [means.tobytes(), packed.tobytes()]
    assert codec.decode(buffers).numpy().tobytes() == values.tobytes()


def test_rows_have_bins_of_their_own() -> None:
    layout = Layout.of([("w", (3, 40)), ("b", (5,))])
    scales = torch.tensor([1.0, 100.0, 1e4])
    vector = torch.cat([(gaussian(120).view(3, 40) * scales[:, None]).flatten(), torch.zeros(5)])
    apart, together = Statistical(layout, rows=True), Statistical(layout)
    small = slice(0, 40)
    own = vector[small].norm()
    assert float((apart.decode(apart.encode(vector))[small] - vector[small]).norm() / own) < 0.55
    assert float((together.decode(together.encode(vector))[small] - vector[small]).norm() / own) > 1
    assert [buffer.nbytes for buffer in apart.encode(vector)] == list(apart.sizes()) == [16 * 4, 32]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=33), st.sampled_from([2, 4, 8]))
def test_the_error_is_never_larger_than_the_deviation(values: list[float], bits: int) -> None:
    codec = Statistical(Layout.of([("w", (len(values),))]), bits)  # type: ignore[arg-type]
    x = np.array(values, np.float32).astype(float)
    found = codec.decode(codec.encode(torch.tensor(values))).double().numpy()
    assert np.linalg.norm(found - x) <= np.linalg.norm(x - x.mean()) + 1e-3 + 1e-6 * np.abs(x).max()


def test_fed_back_errors_stay_bounded() -> None:
    """What MuLoCo needs of it: the error of 2 bits is smaller than the vector."""
    codec, vector = ErrorFeedback(Statistical(LAYOUT)), gaussian(LAYOUT.size)
    memory = codec.start()
    total, left = torch.zeros(LAYOUT.size), []
    for step in range(300):
        total += codec.decode(codec.encode(vector, Key(0, 0, step), memory))
        left.append(float(memory.residual.norm()))
    assert max(left[100:]) < 1.05 * max(left[:100]) < 3 * float(vector.norm())
    torch.testing.assert_close(total + memory.residual, 300 * vector, rtol=1e-3, atol=1e-2)


def test_bytes_are_those_of_the_format() -> None:
    for bits, nbytes in ((2, 85), (4, 169), (8, 337)):
        codec = Statistical(LAYOUT, bits)  # type: ignore[arg-type]
        assert (
            [buffer.nbytes for buffer in codec.encode(gaussian(337))]
            == list(codec.sizes())
            == [4 * 4 * 2**bits, nbytes]
        )


def test_what_it_refuses() -> None:
    codec = Statistical(LAYOUT)
    bad = gaussian(LAYOUT.size)
    bad[310] = float("nan")
    with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity"):
        codec.encode(bad)
    means, bins = codec.encode(gaussian(LAYOUT.size))
    with pytest.raises(CodecError, match="bins: "):
        codec.decode([means, bins[:-1]])
    with pytest.raises(CodecError, match="means: NaN or infinity"):
        codec.decode([np.full_like(means, np.inf), bins])
