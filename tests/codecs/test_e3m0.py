"""Four bits an element: the nearest power of two below a layer's largest magnitude."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.e3m0 import E3M0
from testbed.errors import CodecError
from testbed.layout import Layout

LEVELS = np.array([0.0, *(2.0**-k for k in range(6, -1, -1))])
GRID = np.concatenate([-LEVELS[:0:-1], LEVELS])


def back(values: list[float], *shapes: tuple[str, tuple[int, ...]]) -> list[float]:
    codec = E3M0(Layout.of(shapes or [("w", (len(values),))]))
    return codec.decode(codec.encode(torch.tensor(values))).tolist()


def test_levels_come_back_and_halves_go_up() -> None:
    assert back((4 * GRID).tolist()) == (4 * GRID).tolist()
    assert back([1.0, 0.75, 0.7499, -0.375, 2.0**-7, 0.99 * 2.0**-7]) == [1.0, 1.0, 0.5, -0.5, 2.0**-6, 0.0]


def test_every_layer_has_a_scale_of_its_own() -> None:
    assert back([8.0, 1.0, 1e-3, -1e-3, 0.0], ("a", (2,)), ("b", (2,)), ("c", (1,))) == pytest.approx(
        [8.0, 1.0, 1e-3, -1e-3, 0.0]
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=33))
def test_an_element_becomes_the_nearest(values: list[float]) -> None:
    x = np.array(values, np.float32).astype(float)
    largest = np.abs(x).max()
    nearest = np.abs(x[:, None] - largest * GRID).min(1)
    np.testing.assert_allclose(np.abs(np.array(back(values)) - x), nearest, rtol=1e-5, atol=1e-6 * largest)


def test_bytes_are_those_of_the_format() -> None:
    codec = E3M0(Layout.of([("w", (3, 5)), ("b", (2,))]))
    buffers = codec.encode(torch.tensor([1.0, -0.25, 0.0, 0.5, *[0.0] * 11, 2.0, -2.0]))
    assert [buffer.nbytes for buffer in buffers] == list(codec.sizes()) == [8, 9]
    assert buffers[0].tolist() == [1.0, 2.0]
    assert buffers[1].tolist() == [7 | (8 + 5) << 4, 0 | 6 << 4, 0, 0, 0, 0, 0, 7 << 4, 8 + 7]


def test_what_it_refuses() -> None:
    codec = E3M0(Layout.of([("w", (4,)), ("b", (2,))]))
    with pytest.raises(CodecError, match="layer b: NaN or infinity"):
        codec.encode(torch.tensor([1.0, 1.0, 1.0, 1.0, float("nan"), 0.0]))
    scales, codes = codec.encode(torch.ones(6))
    with pytest.raises(CodecError, match="layer b: a scale is finite"):
        codec.decode([np.array([1, np.inf], np.float32), codes])
    with pytest.raises(CodecError, match="codes: 3 contiguous bytes"):
        codec.decode([scales, codes[:-1]])
