"""Four bits an element: the nearest power of two below a layer's largest magnitude."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.e3m0 import E3M0
from testbed.codecs.kernels.threads import CHUNK
from testbed.errors import CodecError
from testbed.layout import Layout

LEVELS = np.array([0.0, *(2.0**-k for k in range(6, -1, -1))])
GRID = np.concatenate([-LEVELS[:0:-1], LEVELS])


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)  # zeros of both signs, denormals, the largest


def coded(layers: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Each layer's scale, and each element's code, by the format's rule in numpy's float32."""
    scales, codes = [], [np.empty(0, int)]
    for x in layers:
        scales.append(np.abs(x).max(initial=0))
        ratio = np.abs(x) / (scales[-1] or np.float32(1))
        above = np.frexp(ratio * np.float32(4 / 3))[1] - 1  # of the power of two below
        power = np.where(ratio < 2.0**-7, 0, np.clip(above + 7, 1, 7))
        codes.append(power + 8 * (x < 0))
    return np.array(scales, np.float32), np.concatenate(codes)


def value(code: int, scale: np.float32) -> np.float32:
    """What a code stands for."""
    size = np.float32(2.0 ** (code % 8 - 7) if code % 8 else 0)
    return (-size if code >= 8 else size) * scale


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


@settings(deadline=None)
@given(st.lists(st.lists(floats, max_size=9), max_size=6))
def test_bytes_and_values_are_those_of_the_rule(layers: list[list[float]]) -> None:
    """Layers begin and end within a byte, and some are empty."""
    codec = E3M0(Layout.of([(f"{number}.w", (len(layer),)) for number, layer in enumerate(layers)]))
    scales, codes = coded([np.array(layer, np.float32) for layer in layers])
    pairs = np.append(codes, [0] * (codes.size % 2)).reshape(-1, 2)
    buffers = codec.encode(torch.tensor([each for layer in layers for each in layer], dtype=torch.float32))
    assert [buffer.tobytes() for buffer in buffers] == [
        scales.tobytes(),
        (pairs[:, 0] + 16 * pairs[:, 1]).astype(np.uint8).tobytes(),
    ]
    owners = np.repeat(scales, [len(layer) for layer in layers])
    expected = np.array([value(code, scale) for code, scale in zip(codes.tolist(), owners, strict=True)], np.float32)
    assert codec.decode(buffers).numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("sizes", [(8191, 1, 8193), (3, CHUNK, 0, CHUNK + 8190)])
def test_blocks_and_chunks_leave_no_trace(sizes: tuple[int, ...]) -> None:
    codec = E3M0(Layout.of([(f"{number}.w", (size,)) for number, size in enumerate(sizes)]))
    vector = torch.randn(codec.layout.size, generator=torch.Generator().manual_seed(0))
    vector *= torch.arange(len(sizes)).add(1).repeat_interleave(torch.tensor(sizes))
    scales, codes = coded(np.split(vector.numpy(), np.cumsum(sizes)[:-1]))
    buffers = codec.encode(vector)
    assert np.array_equal(buffers[0], scales)
    assert np.array_equal(np.stack([buffers[1] & 15, buffers[1] >> 4], 1).reshape(-1)[: codes.size], codes)
    values = np.repeat(scales, sizes) * np.where(codes % 8, 2.0 ** (codes % 8 - 7), 0) * np.where(codes >= 8, -1, 1)
    assert np.array_equal(codec.decode(buffers).numpy(), values.astype(np.float32))


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
