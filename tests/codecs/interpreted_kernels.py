"""The cases of `test_fused.py`: Triton's kernels on the CPU, in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_backend import layout_of, same_bits, vector

from testbed.codecs import Key, LevelSum, Ternary, ThresholdTernary
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.resident import fused, twin_of
from testbed.codecs.resident.ternary import Limits
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError
from testbed.layout import Layout

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of what a GPU computes in silence
HERE = torch.device("cpu")
SIZES = [0, 1, 9, 1025, 5121, 8193]  # of a layer: at and around the boundaries of blocks and stretches
TERNARY: dict[str, Callable[[Layout], Ternary]] = {
    "ternary": Ternary,
    "all": lambda layout: Ternary(layout, clip=None, float_last=False),
    "one-scale": lambda layout: Ternary(layout, clip=0.3, layerwise=False),
}
CODECS: dict[str, Callable[[Layout], TritFormat]] = {
    **TERNARY,
    "threshold": ThresholdTernary,
    "blockwise": BlockThresholdTernary,
}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    monkeypatch.setattr(fused, "usable", lambda device: True)


def sixteenths(size: int, seed: int) -> torch.Tensor:
    """Values whose sums are exact, in any order."""
    return vector(size, seed).mul(16).round().div(16)


def as_bytes(buffers: list[torch.Tensor]) -> list[bytes]:
    return [buffer.numpy().tobytes() for buffer in buffers]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_messages_are_the_same_to_the_byte_and_decode_alike(name: str, size: int) -> None:
    codec = CODECS[name](layout_of(size))
    kernels = twin_of(codec, HERE)
    values, key = sixteenths(codec.layout.size, size), Key(size, -3, 7)
    expected, found = codec.encode(values, key), kernels.encode(values, key)
    assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
    assert same_bits(kernels.decode(found), codec.decode(expected))


@pytest.mark.parametrize("size", [1, 5121])
def test_a_vector_is_written_where_it_is_wanted(size: int) -> None:
    """At any address; what lies apart is copied there."""
    codec = Ternary(layout_of(size))
    kernels = twin_of(codec, HERE)
    message = kernels.encode(sixteenths(codec.layout.size, size), Key(0, 0, 0))
    decoded, into = kernels.decode(message), torch.full((codec.layout.size + 1,), torch.nan)[1:]
    assert kernels.decode(message, into) is into
    assert same_bits(into, decoded)
    apart = torch.full((codec.layout.size, 2), torch.nan)[:, 0]
    assert same_bits(kernels.decode(message, apart).contiguous(), decoded)
    assert same_bits(kernels.shared(message), decoded)
    assert kernels.shared(message) is kernels.shared(message)


@pytest.mark.parametrize("name", TERNARY)
@pytest.mark.parametrize("seed", range(3))
def test_scales_are_the_same_to_rounding(name: str, seed: int) -> None:
    """Of values of any size, whose sums depend on their order."""
    codec = TERNARY[name](layout_of(9000))
    values, kernels = vector(codec.layout.size, seed, 2), twin_of(codec, HERE)
    limits = codec.limits(values)
    clip, scales = kernels.limits(values)
    assert np.allclose(clip.numpy(), limits.clip, rtol=1e-6, atol=0)
    assert np.allclose(scales.numpy(), limits.scales, rtol=1e-6, atol=0)
    measured = Limits(torch.from_numpy(limits.clip), torch.from_numpy(limits.scales))
    found = kernels.encode(values, Key(0, 0, seed), limits=measured)
    assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values, Key(0, 0, seed), limits=limits)]


@pytest.mark.parametrize("layerwise", [True, False])
@pytest.mark.parametrize("size", [1, 5121, 10_245])
def test_a_worker_codes_on_scales_that_others_share(layerwise: bool, size: int) -> None:
    codec = Ternary(layout_of(size), layerwise=layerwise)
    values, key = sixteenths(codec.layout.size, size), Key(1, 2, 3)
    limits = codec.limits(values)
    shared = limits.scales * np.float32(1.5)
    kernels = twin_of(codec, HERE)
    measured = kernels.limits(values)
    assert as_bytes(list(measured)) == [limits.clip.tobytes(), limits.scales.tobytes()]
    found = kernels.encode(values, key, torch.from_numpy(shared), measured)
    assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values, key, shared, limits)]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("shared", ["own", "alike", "each"])
@pytest.mark.parametrize("name", TERNARY)
def test_several_vectors_are_coded_in_one_go(name: str, shared: str, apart: bool) -> None:
    """Wherever they lie, and each as by itself."""
    codec = TERNARY[name](layout_of(5121))
    size, keys = codec.layout.size, [Key(1, worker, 5) for worker in range(3)]
    block = torch.stack([sixteenths(size, worker) * (1 + worker) for worker in range(3)])
    vectors = [row.clone() if apart else row for row in block.unbind()]
    kernels = twin_of(codec, HERE)
    limits = kernels.limits_of([(each,) for each in vectors])
    alone = [codec.limits(each) for each in vectors]
    assert [as_bytes(list(each)) for each in limits] == [[e.clip.tobytes(), e.scales.tobytes()] for e in alone]
    largest = np.maximum.reduce([each.scales for each in alone])
    doubled = [each.scales * np.float32(2) for each in alone]
    scales = {"own": [None] * 3, "alike": [largest] * 3, "each": doubled}[shared]
    one = torch.from_numpy(largest)
    given = [one if shared == "alike" else None if each is None else torch.from_numpy(each) for each in scales]
    found = kernels.encode_all(list(zip(vectors, keys, given, limits, strict=True)))
    for vector_, key, own, measured, buffers in zip(vectors, keys, scales, alone, found, strict=True):
        assert as_bytes(buffers) == [each.tobytes() for each in codec.encode(vector_, key, own, measured)]
        assert same_bits(kernels.decode(buffers), codec.decode([buffer.numpy() for buffer in buffers]))


@pytest.mark.parametrize(("size", "apart"), [(1, False), (5121, True), (5121, False)])
@pytest.mark.parametrize("name", CODECS)
def test_several_messages_are_decoded_in_one_go(name: str, size: int, apart: bool) -> None:
    """Wherever their buffers lie."""
    codec = CODECS[name](layout_of(size))
    kernels = twin_of(codec, HERE)
    messages = [codec.encode(sixteenths(codec.layout.size, seed), Key(0, seed, 1)) for seed in range(3)]
    there = [[torch.from_numpy(buffer.copy()) for buffer in buffers] for buffers in messages]
    if not apart:
        there = list(map(list, zip(*(torch.stack(parts).unbind() for parts in zip(*there, strict=True)), strict=True)))
    for buffers, decoded in zip(messages, kernels.shared_all(there), strict=True):
        assert same_bits(decoded, codec.decode(buffers))
    with pytest.raises(CodecError, match="expected, found"):
        kernels.shared_all([there[0], [each[:-1] for each in there[1]]])


@pytest.mark.parametrize("magnitude", [1e-30, 1e-44, 0.0])
def test_tiny_scales_are_drawn_alike(magnitude: float) -> None:
    codec = Ternary(layout_of(100), clip=None)
    values = vector(codec.layout.size, 1) * magnitude
    expected, found = codec.encode(values, Key(0, 0, 0)), twin_of(codec, HERE).encode(values, Key(0, 0, 0))
    assert as_bytes(found) == [buffer.tobytes() for buffer in expected]


def test_layers_that_are_alike_are_not_clipped() -> None:
    codec = Ternary(layout_of(3000))
    values = torch.full((codec.layout.size,), 0.1)
    expected, found = codec.encode(values, Key(0, 0, 0)), twin_of(codec, HERE).encode(values, Key(0, 0, 0))
    assert as_bytes(found) == [buffer.tobytes() for buffer in expected]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1, 2**80 + 5])
def test_layers_have_keys_of_their_own(seed: int) -> None:
    """Of layers between which others stay in float32."""
    codec = Ternary(Layout.of([("a.weight", (40,)), ("last.weight", (2, 3)), ("b.weight", (50,))]))
    values, key = sixteenths(codec.layout.size, 1), Key(seed, 2, seed)
    found = twin_of(codec, HERE).encode(values, key)
    assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values, key)]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", TERNARY)
def test_a_value_that_is_no_number_is_told_later(wrong: float, name: str) -> None:
    """And stays in its layer."""
    codec = TERNARY[name](layout_of(9000))
    values, kernels = sixteenths(codec.layout.size, 1), twin_of(codec, HERE)
    expected = codec.encode(values, Key(0, 0, 0))
    values[8500] = wrong
    scales, floats, trits = kernels.encode(values, Key(0, 0, 0))
    assert "layer a.weight" in str(kernels.doubts.error())
    assert not scales[0].isfinite()
    assert as_bytes([floats]) == [expected[1].tobytes()]
    if not codec.one_scale:
        others = [expected[0][1:], expected[2][9000 // 5 :]]
        assert as_bytes([scales[1:], trits[9000 // 5 :]]) == [each.tobytes() for each in others]
    kernels.doubts.forget()


def test_kernels_are_tried() -> None:
    fused._try(HERE)


def test_a_message_of_another_size_is_refused() -> None:
    codec = Ternary(layout_of(100))
    kernels, values = twin_of(codec, HERE), sixteenths(codec.layout.size, 1)
    scales, floats, trits = kernels.encode(values, Key(0, 0, 0))
    with pytest.raises(CodecError, match="bytes expected"):
        kernels.decode([scales, floats, trits[:-1]])
    with pytest.raises(CodecError, match="elements expected"):
        kernels.decode([scales, floats, trits], torch.empty(5))
    with pytest.raises(CodecError, match="shared scales expected"):
        kernels.encode(values, Key(0, 0, 0), scales[:1])


def test_levels_are_summed_beside_kernels() -> None:
    ternary = Ternary(layout_of(5121))
    total, values = LevelSum(ternary, 2), sixteenths(ternary.layout.size, 1)
    scales = ternary.limits(values).scales
    messages = [ternary.encode(values, Key(1, worker, 0), scales) for worker in range(2)]
    there = twin_of(total, HERE)
    found = there.encode(there.sum([[torch.from_numpy(each.copy()) for each in message] for message in messages]))
    expected = total.encode(total.sum(messages))
    assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
    assert same_bits(there.decode(found), total.decode(expected))
