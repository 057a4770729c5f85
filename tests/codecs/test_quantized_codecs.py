"""What every quantizing codec is held to: exact bytes, awkward vectors, messages of the wrong shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from testbed.codecs.base import Buffers, Key
from testbed.codecs.half import Half
from testbed.codecs.onebit import OneBit
from testbed.codecs.qsgd import QSGD
from testbed.codecs.uniform import Uniform
from testbed.errors import CodecError
from testbed.layout import Layer, Layout

LAYOUT = Layout.of([("a.weight", (30, 41)), ("a.bias", (41,)), ("b.weight", (7, 3)), ("b.bias", (3,))])
KEY = Key(seed=1, stream=2, step=3)


def codecs(layout: Layout) -> dict[str, Any]:
    """Every codec in each of its forms; those with float layers keep b in float32."""
    return {
        "half": Half(layout),
        "onebit": OneBit(layout),
        "uniform-1": Uniform(layout, 1),
        "uniform-3-random": Uniform(layout, 3, "random"),
        "uniform-8": Uniform(layout, 8, chosen=lambda layer: not layer.last),
        "qsgd": QSGD(layout, levels=5, bucket=64, smallest=0),
        "qsgd-elias": QSGD(layout, levels=7, bucket=128, norm="euclidean", coding="elias", smallest=30),
    }


CODECS = codecs(LAYOUT)
NAMES = list(CODECS)
FEEDING = ["onebit", "uniform-1", "uniform-3-random", "uniform-8"]


def vector(seed: int = 1) -> torch.Tensor:
    return torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed))


def same(first: Buffers, second: Buffers) -> bool:
    return [buffer.tobytes() for buffer in first] == [buffer.tobytes() for buffer in second]


@pytest.mark.parametrize("name", NAMES)
def test_a_message_decodes_from_bytes_read_only_and_misaligned(name: str) -> None:
    codec = CODECS[name]
    buffers = codec.encode(vector(), KEY)
    expected = codec.decode(buffers)
    out = torch.full((LAYOUT.size,), torch.nan)
    assert codec.decode([buffer.tobytes() for buffer in buffers], out) is out
    assert torch.equal(out, expected)
    shifted = [memoryview(b"x" + buffer.tobytes())[1:] for buffer in buffers]
    assert torch.equal(codec.decode(shifted), expected)


@pytest.mark.parametrize("name", NAMES)
def test_strided_tracked_and_misaligned_vectors_encode_as_their_values(name: str) -> None:
    codec = CODECS[name]
    wide = torch.zeros(LAYOUT.size, 2)
    wide[:, 0] = vector()
    shifted = torch.cat([torch.zeros(1), vector()])[1:]
    expected = codec.encode(vector(), KEY)
    for values in (wide[:, 0], vector().requires_grad_(), shifted):
        assert same(codec.encode(values, KEY), expected)
    with pytest.raises(CodecError, match="contiguous"):
        codec.decode(expected, wide[:, 0])
    with pytest.raises(CodecError, match="flat float32 vector"):
        codec.encode(torch.zeros(3), KEY)


@pytest.mark.parametrize("name", NAMES)
def test_messages_and_vectors_share_no_memory(name: str) -> None:
    source, codec = vector(), CODECS[name]
    buffers = codec.encode(source, KEY)
    before = [buffer.copy() for buffer in buffers]
    source.zero_()
    codec.decode(buffers).zero_()
    assert same(buffers, before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", LAYOUT.layers, ids=lambda layer: layer.name)
@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused_by_the_layers_name(name: str, layer: Layer, value: float) -> None:
    broken = vector()
    broken[layer.end - 1] = value
    with pytest.raises(CodecError, match=rf"layer {layer.name}: NaN or infinity"):
        CODECS[name].encode(broken, KEY)


@pytest.mark.parametrize("name", FEEDING)
def test_what_was_sent_and_what_is_left_are_what_was_wanted(name: str) -> None:
    """And the message is that of vector + residual without feedback."""
    codec, residual, wanted = CODECS[name], vector(2), vector(1) + vector(2)
    buffers = codec.encode_with_feedback(vector(1), residual, KEY)
    assert same(buffers, codec.encode(wanted, KEY))
    assert torch.allclose(codec.decode(buffers) + residual, wanted, rtol=0, atol=1e-6)
    floats = getattr(codec, "selection", None)
    for layer in floats.floats if floats else ():
        assert not residual[layer.slice].any()


@pytest.mark.parametrize("name", FEEDING)
def test_a_sum_with_the_residual_beyond_float32_is_refused(name: str) -> None:
    for layer in LAYOUT:
        broken, residual = vector(), torch.zeros(LAYOUT.size)
        broken[layer.offset] = residual[layer.offset] = 3e38
        before = residual.clone()
        with pytest.raises(CodecError, match=rf"layer {layer.name}: NaN or infinity"):
            CODECS[name].encode_with_feedback(broken, residual, KEY)
        assert name == "onebit" or torch.equal(residual, before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-38, 0.1, -7.0, 1e20, 3.4028234e38])
def test_equal_values_come_back(name: str, value: float) -> None:
    """Zeros, denormals and the largest of float32 alike; where a Euclidean norm is far above them, at most that."""
    codec = CODECS[name]
    decoded = codec.decode(codec.encode(torch.full((LAYOUT.size,), value), KEY))
    if name == "qsgd-elias":
        assert bool((decoded * np.sign(value) >= 0).all())
        assert bool(decoded.isfinite().all())
    else:
        assert torch.allclose(decoded, torch.full((LAYOUT.size,), value), rtol=5e-4, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0,), (1,), (), (0, 4), (4, 0), (3, 1), (1, 9)])
def test_empty_and_tiny_layers(name: str, shape: tuple[int, ...]) -> None:
    layout = Layout.of([("a.weight", shape), ("b.weight", (2, 2))])
    codec, x = codecs(layout)[name], torch.arange(1.0, layout.size + 1)
    decoded = codec.decode(codec.encode(x, KEY))
    assert decoded.shape == x.shape
    assert float((decoded - x).abs().max()) <= float(x.max()) * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_parameters(name: str) -> None:
    codec = codecs(Layout(()))[name]
    assert codec.decode(codec.encode(torch.empty(0), KEY)).shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_key_gives_the_same_bytes_for_any_number_of_threads(name: str) -> None:
    layout = Layout.of([("a.weight", (1100, 2003)), ("b.weight", (2_100_001,)), ("c.weight", (3, 3))])
    codec = codecs(layout)[name]
    x = torch.randn(layout.size, generator=torch.Generator().manual_seed(4))
    messages = []
    for count in (1, 3):
        torch.set_num_threads(count)
        messages.append(codec.encode(x, KEY))
        assert torch.equal(codec.decode(messages[-1]), codec.decode(messages[0]))
    assert same(*messages)


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_the_wrong_shape_are_refused(name: str) -> None:
    buffers = [buffer.tobytes() for buffer in CODECS[name].encode(vector(), KEY)]
    with pytest.raises(CodecError, match="buffers"):
        CODECS[name].decode([*buffers, b""])
    for i, buffer in enumerate(buffers):
        for wrong in (buffer[:-1], buffer + b"\0", None, 3):
            if wrong != buffer:
                with pytest.raises(CodecError, match=r"expected|bytes are|Elias"):
                    CODECS[name].decode([*buffers[:i], wrong, *buffers[i + 1 :]])
