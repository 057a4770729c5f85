"""Keys, and the checks that every codec makes of vectors and messages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from refusals import refused

from testbed.codecs import Buffers, Codec, Float32, Key, LevelSum, Ternary, ThresholdTernary
from testbed.codecs.base import wire_array
from testbed.errors import CodecError
from testbed.layout import Layer, Layout

LAYOUT = Layout.of([("a.weight", (30, 41)), ("a.bias", (41,)), ("b.weight", (7, 3)), ("b.bias", (3,))])
KEY = Key(seed=1, stream=2, step=3)
CODECS = [Float32(LAYOUT), Ternary(LAYOUT), Ternary(LAYOUT, layerwise=False), ThresholdTernary(LAYOUT)]


def vector() -> torch.Tensor:
    return torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(1))


def test_a_key_gives_each_seed_stream_step_and_layer_its_own_bits() -> None:
    keys = [Key(a, b, c).layer(d) for a, b, c, d in product(range(6), repeat=4)]
    assert all(0 <= key < 2**32 for key in keys)
    assert len(set(keys)) == len(keys)
    assert len({Key(-1, 0, 0).layer(0), Key(2**80 + 5, 0, 0).layer(0), Key(5, 0, 0).layer(0)}) >= 2


def test_neighbouring_keys_differ_in_half_of_their_bits() -> None:
    pairs = [(Key(s, 0, t).layer(0), Key(s, 0, t + 1).layer(0)) for s in range(30) for t in range(30)]
    flipped = sum((a ^ b).bit_count() for a, b in pairs) / (32 * len(pairs))
    assert abs(flipped - 0.5) < 4 * 0.5 / np.sqrt(32 * len(pairs))


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_has_exactly_the_bytes_the_codec_states(codec: Codec) -> None:
    assert sum(buffer.nbytes for buffer in codec.encode(vector(), KEY)) == codec.nbytes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wire", [bytes, lambda b: memoryview(b.tobytes()), lambda b: b.view(np.uint8)])
def test_a_message_decodes_from_whatever_the_network_hands_over(
    codec: Codec, wire: Callable[[np.ndarray], object]
) -> None:
    buffers = codec.encode(vector(), KEY)
    expected = codec.decode(buffers)
    out = torch.full((LAYOUT.size,), torch.nan)
    assert codec.decode([wire(buffer) for buffer in buffers], out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("codec", CODECS)
def test_a_misaligned_message_decodes(codec: Codec) -> None:
    buffers = codec.encode(vector(), KEY)
    shifted = [memoryview(b"x" + buffer.tobytes())[1:] for buffer in buffers]
    assert torch.equal(codec.decode(shifted), codec.decode(buffers))


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_shares_no_memory_with_vectors(codec: Codec) -> None:
    source = vector()
    buffers = codec.encode(source, KEY)
    before = [buffer.copy() for buffer in buffers]
    source.zero_()
    codec.decode(buffers).zero_()
    assert all(np.array_equal(a, b) for a, b in zip(buffers, before, strict=True))


@pytest.mark.parametrize("codec", CODECS)
def test_message_of_the_wrong_shape_are_refused(codec: Codec) -> None:
    buffers = [buffer.tobytes() for buffer in codec.encode(vector(), KEY)]
    with pytest.raises(CodecError, match="buffers"):
        codec.decode([*buffers, b""])
    for i, buffer in enumerate(buffers):
        for wrong in (buffer[:-1], buffer + b"\0", b"", None, 3):
            with pytest.raises(CodecError, match="bytes expected"):
                codec.decode([*buffers[:i], wrong, *buffers[i + 1 :]])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(3), torch.zeros(LAYOUT.size, dtype=torch.float64), torch.zeros(1, LAYOUT.size)],
)
def test_vectors_of_another_model_are_refused(codec: Codec, wrong: torch.Tensor) -> None:
    with pytest.raises(CodecError, match="flat float32 vector"):
        codec.encode(wrong, KEY)
    with pytest.raises(CodecError, match="flat float32 vector"):
        codec.decode(codec.encode(vector(), KEY), wrong)


@pytest.mark.parametrize("codec", CODECS)
def test_strided_and_tracked_vectors_encode_as_their_values(codec: Codec) -> None:
    wide = torch.zeros(LAYOUT.size, 2)
    wide[:, 0] = vector()
    tracked = vector().requires_grad_()
    expected = [buffer.tobytes() for buffer in codec.encode(vector(), KEY)]
    for same in (wide[:, 0], tracked):
        assert [buffer.tobytes() for buffer in codec.encode(same, KEY)] == expected
    with pytest.raises(CodecError, match="contiguous"):
        codec.decode(codec.encode(vector(), KEY), wide[:, 0])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layer", LAYOUT.layers, ids=lambda layer: layer.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused_by_the_layers_name(codec: Codec, layer: Layer, value: float) -> None:
    broken = vector()
    broken[layer.end - 1] = value
    with pytest.raises(CodecError, match=rf"layer {layer.name}: NaN or infinity"):
        codec.encode(broken, KEY)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_scale_from_the_wire_is_finite_and_not_negative(codec: Codec, value: float) -> None:
    buffers = codec.encode(vector(), KEY)
    buffers[0][-1] = value
    with pytest.raises(CodecError, match=r"(layer \S+|all layers): a scale is finite and at least 0"):
        codec.decode(buffers)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_byte_that_is_not_five_digits_is_refused(codec: Codec) -> None:
    buffers = codec.encode(vector(), KEY)
    buffers[2][0] = 243
    with pytest.raises(CodecError, match=r"layer a\.weight: a byte above 242"):
        codec.decode(buffers)


def message_of(codec: Codec | LevelSum) -> Buffers:
    if isinstance(codec, LevelSum):
        return codec.encode(codec.sum([Ternary(LAYOUT).encode(vector(), KEY)] * codec.workers))
    return codec.encode(vector(), KEY)


@pytest.mark.parametrize("codec", [*CODECS, LevelSum(Ternary(LAYOUT), 3)])
def test_mutated_messages_give_an_error_or_a_finite_vector(codec: Codec | LevelSum) -> None:
    random = np.random.default_rng(0)
    good = message_of(codec)
    messages = []
    for _ in range(300):
        bad = [bytearray(buffer.tobytes()) for buffer in good]
        target = bad[random.integers(len(bad))]
        for _ in range(random.integers(1, 4)):
            target[random.integers(len(target))] = random.integers(256)
        if random.random() < 0.2:
            del target[random.integers(len(target)) :]
        messages.append(bad)
    assert 30 < refused(codec, messages, finite=not isinstance(codec, Float32)) < 300


def test_wire_array_names_the_buffer() -> None:
    with pytest.raises(CodecError, match="trits: 8 contiguous bytes expected, found 9"):
        wire_array(b"123456789", np.uint8, 8, "trits")
    with pytest.raises(CodecError, match="scales: bytes expected, found str"):
        wire_array("1234", np.float32, 1, "scales")
    assert wire_array(b"", np.float32, 0, "scales").shape == (0,)
