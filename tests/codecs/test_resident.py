"""Messages that stay on the device: the same bytes as on the CPU, nothing waited for, few operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from elsewhere import PLACES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_backend import Place, layout_of, same_bits, seeds, spreads, vector

from testbed.codecs import Key, LevelSum, Ternary, ThresholdTernary
from testbed.codecs.adaptive import Adaptive
from testbed.codecs.base import Codec
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.floats import Float32
from testbed.codecs.half import Half
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.onebit import LONGEST, OneBit
from testbed.codecs.partial import Partial
from testbed.codecs.qsgd import QSGD
from testbed.codecs.resident import placed
from testbed.codecs.sparse import Sparse
from testbed.codecs.statistical import Statistical
from testbed.codecs.threshold import Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Rounding, Uniform
from testbed.errors import CodecError
from testbed.gpu import doubts, notes
from testbed.gpu.moves import near
from testbed.gpu.standin import standin
from testbed.layout import Layout

pytestmark = pytest.mark.slow  # hundreds of pairs of codecs, on an imitated device

on_devices = pytest.mark.parametrize("place", PLACES)
of_sizes = pytest.mark.parametrize("size", [0, 1, 9, 1025, 5121, 8193, 16_500])  # at and around block boundaries

EXACT: dict[str, Callable[[Layout], Codec]] = {
    "float32": Float32,
    "half": Half,
    "1-bit": lambda layout: Uniform(layout, 1),
    "3-bit-random": lambda layout: Uniform(layout, 3, "random", lambda layer: not layer.bias),
    "8-bit": Uniform,
    "sparse": Sparse,
    "thresholded": lambda layout: Thresholded(layout, 0.7),
    "top-k": lambda layout: TopK(layout, 0.02),
    "qsgd": lambda layout: QSGD(layout, smallest=8),
    "qsgd-elias": lambda layout: QSGD(layout, 1, coding="elias", smallest=0),
    "qsgd-finest": lambda layout: QSGD(layout, 127, 8192, smallest=2000),
    "qsgd-finest-elias": lambda layout: QSGD(layout, 127, 1, coding="elias", smallest=0),
    "e3m0": E3M0,
}
SCALED: dict[str, Callable[[Layout], Codec]] = {  # their scales are sums, equal to rounding only
    "ternary": Ternary,
    "ternary-all": lambda layout: Ternary(layout, clip=None, float_last=False),
    "ternary-one-scale": lambda layout: Ternary(layout, layerwise=False),
    "threshold": ThresholdTernary,
    "one-bit": OneBit,
    "qsgd-euclidean": lambda layout: QSGD(layout, norm="euclidean", smallest=8),
    "adaptive": Adaptive,
    "adaptive-fine": lambda layout: Adaptive(layout, 0.002),
    "threshold-blockwise": BlockThresholdTernary,
    "statistical": Statistical,
    "statistical-rows": lambda layout: Statistical(layout, 4, rows=True),
}
CODECS = EXACT | SCALED


def bytes_of(buffer: torch.Tensor | np.ndarray) -> bytes:
    return near(buffer).tobytes()


def as_bytes(buffers: list[torch.Tensor]) -> list[bytes]:
    return [buffer.cpu().contiguous().numpy().tobytes() for buffer in buffers]


@on_devices
@of_sizes
@pytest.mark.parametrize("name", CODECS)
def test_messages_are_the_same_to_the_byte(place: Place, name: str, size: int) -> None:
    """From the first call, which is not captured, to the third, which is a second launch of what was."""
    codec = CODECS[name](layout_of(size))
    with place() as device:
        twin = placed(codec, device)
        for call in range(3):
            values = vector(codec.layout.size, size + call)
            if name in SCALED:
                values = values.mul(16).round().div(16)  # of which sums are exact
            key = Key(size, 3, call)
            expected, found = codec.encode(values, key), twin.encode(values.to(device), key)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert [buffer.nbytes for buffer in found] == [buffer.nbytes for buffer in expected]
            decoded = twin.decode(found)
            assert decoded.device.type == torch.device(device).type
            assert same_bits(decoded.cpu(), codec.decode(expected))
            again = twin.decode(found)
            assert again is not decoded
            assert same_bits(again.cpu(), decoded.cpu())


@on_devices
@pytest.mark.parametrize("layerwise", [True, False])
@pytest.mark.parametrize("size", [1, 5121, 10_245])
def test_a_worker_codes_on_scales_that_others_share(place: Place, layerwise: bool, size: int) -> None:
    codec = Ternary(layout_of(size), layerwise=layerwise)
    values, key = vector(codec.layout.size, size).mul(16).round().div(16), Key(1, 2, 3)
    limits = codec.limits(values)
    shared = limits.scales * np.float32(1.5)
    with place() as device:
        twin = placed(codec, device)
        there = values.to(device)
        measured = twin.limits(there)
        assert as_bytes(list(measured)) == [limits.clip.tobytes(), limits.scales.tobytes()]
        found = twin.encode(there, key, torch.from_numpy(shared).to(device), measured)
        assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values, key, shared, limits)]


@on_devices
@pytest.mark.parametrize("magnitude", [1e-30, 1e-44])
def test_tiny_scales_are_drawn_alike(place: Place, magnitude: float) -> None:
    codec = Ternary(layout_of(100), clip=None)
    values = vector(codec.layout.size, 1) * magnitude
    with place() as device:
        found = placed(codec, device).encode(values.to(device), Key(0, 0, 0))
        assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values, Key(0, 0, 0))]


@on_devices
@pytest.mark.parametrize("size", [1, 5121, 16_500])
@pytest.mark.parametrize("regions", [1, 2])
def test_sums_of_levels_are_the_same_to_the_byte(place: Place, size: int, regions: int) -> None:
    """A region's sum of four, and the sum of the regions', as TernGrad's servers make them."""
    ternary = Ternary(layout_of(size))
    regional, total = LevelSum(ternary, 4), LevelSum(ternary, 4 * regions)
    values = vector(ternary.layout.size, size).mul(16).round().div(16)
    scales = ternary.limits(values).scales
    messages = [ternary.encode(values, Key(1, worker, 0), scales) for worker in range(4 * regions)]
    sums = [regional.sum(messages[4 * k : 4 * k + 4]) for k in range(regions)]
    expected = total.encode(total.add(regional.unpack(regional.encode(each)) for each in sums))
    with place() as device:
        there, all_there = placed(regional, device), placed(total, device)
        for _ in range(3):
            moved = [[torch.from_numpy(buffer.copy()).to(device) for buffer in message] for message in messages]
            packed = [there.encode(there.sum(moved[4 * k : 4 * k + 4])) for k in range(regions)]
            found = all_there.encode(all_there.add(map(there.unpack, packed)))
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(all_there.decode(found).cpu(), total.decode(expected))


@on_devices
def test_a_sum_that_some_are_missing_from_is_completed_alike(place: Place) -> None:
    ternary = Ternary(layout_of(100))
    total, values = LevelSum(ternary, 5), vector(ternary.layout.size, 1)
    message = ternary.encode(values, Key(0, 0, 0))
    expected = total.encode(total.completed(total.sum([message, message])))
    with place() as device:
        there = placed(total, device)
        moved = [torch.from_numpy(buffer.copy()).to(device) for buffer in message]
        assert as_bytes(there.encode(there.completed(there.sum([moved, moved])))) == [
            each.tobytes() for each in expected
        ]
        with pytest.raises(CodecError, match="2 of 5 workers is not complete"):
            there.encode(there.sum([moved, moved]))


@on_devices
def test_importance_weighs_alike(place: Place) -> None:
    codec = ThresholdTernary(layout_of(3000))
    values, importance = vector(codec.layout.size, 1), vector(codec.layout.size, 2).abs()
    expected = codec.encode(values, importance=importance)
    with place() as device:
        found = placed(codec, device).encode(values.to(device), importance=importance.to(device))
        scales, floats, trits = (buffer.cpu().numpy() for buffer in found)
    assert np.allclose(scales, expected[0], rtol=1e-6)
    assert np.array_equal(floats, expected[1])
    assert np.mean(trits != expected[2]) < 1e-3


@on_devices
def test_what_a_message_leaves_is_fed_back_alike(place: Place) -> None:
    codec = ErrorFeedback(Uniform(layout_of(3000), 3))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(3):
            values = vector(codec.layout.size, step)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert torch.equal(memory.residual.cpu(), memory_here.residual)


@on_devices
@pytest.mark.parametrize("rounding", ["nearest", "random"])
@pytest.mark.parametrize("size", [0, 1, 7, 8193])
def test_a_message_has_as_many_bits_as_it_is_told(place: Place, rounding: Rounding, size: int) -> None:
    """7 bits and 8 take as many bytes of a layer of 7 elements: a message says itself which, without a wait."""
    codec = Uniform(layout_of(size), 8, rounding, lambda layer: not layer.bias)
    residual, residual_here = torch.zeros(codec.layout.size), torch.zeros(codec.layout.size)
    with place() as device:
        twin, there = placed(codec, device), residual.to(device)
        for step, bits in enumerate([2, 2, 3, 2, 7, 8, 8, 2, None]):
            values, key = vector(codec.layout.size, step), Key(0, 0, step)
            found, expected = twin.encode(values.to(device), key, bits), codec.encode(values, key, bits)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert found[0].device.type == "cpu"
            assert same_bits(twin.decode(found).cpu(), codec.decode(expected))
            found = twin.encode_with_feedback(values.to(device), there, key, bits)
            expected = codec.encode_with_feedback(values, residual_here, key, bits)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(there.cpu(), residual_here)


@on_devices
@pytest.mark.parametrize("size", [0, 1, 8193])
@pytest.mark.parametrize("make", [Uniform, Half, E3M0])
def test_some_layers_are_coded_and_the_others_travel_as_they_are(
    place: Place, make: Callable[[Layout], Codec], size: int
) -> None:
    """By codecs that remember nothing."""
    codec = Partial(layout_of(size), make, lambda layer: not layer.bias)
    with place() as device:
        twin = placed(codec, device)
        for step in range(3):
            values, key = vector(codec.layout.size, step), Key(0, 0, step)
            found, expected = twin.encode(values.to(device), key, twin.start()), codec.encode(values, key, None)
            assert list(map(bytes_of, found)) == list(map(bytes_of, expected))


@on_devices
@of_sizes
def test_blocks_are_fed_back_in_one_pass(place: Place, size: int) -> None:
    """Of exact sums to the bit; float layers leave nothing."""
    codec = ErrorFeedback(BlockThresholdTernary(layout_of(size)))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(3):
            for kept in (memory, memory_here):  # what is left of means is no multiple of a sixteenth
                kept.residual = kept.residual.mul(16).round().div(16)
            values = vector(codec.layout.size, step).mul(16).round().div(16)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(memory.residual.cpu(), memory_here.residual)


@on_devices
@pytest.mark.parametrize("make", [lambda layout: ErrorFeedback(Uniform(layout, 3)), OneBit])
@pytest.mark.parametrize("biases", [True, False])
def test_layers_that_are_not_coded_travel_beside(place: Place, make: Callable[[Layout], Codec], biases: bool) -> None:
    codec = Partial(layout_of(3000), make, lambda layer: not layer.last and (biases or not layer.bias))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(3):
            values = vector(codec.layout.size, step).mul(16).round().div(16)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(twin.decode(found).cpu(), codec.decode(expected))


@on_devices
def test_a_float_beside_coded_layers_is_told_later_where_it_is_no_number(place: Place) -> None:
    codec = Partial(layout_of(100), Uniform, lambda layer: not layer.bias)
    values = vector(codec.layout.size, 1)
    values[101] = float("nan")
    with place() as device:
        doubts.settle()
        placed(codec, device).encode(values.to(device), Key(0, 0, 0), None)
        with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity among its values"):
            doubts.settle()


@on_devices
@pytest.mark.parametrize("size", [0, 1, 1000, 16_500, LONGEST + 5])
def test_one_bit_feeds_back_in_one_pass(place: Place, size: int) -> None:
    """Of exact sums to the bit; captured from the second call on."""
    layout = Layout.of([("a.bias", (size,)), ("b.weight", (3, size)), ("c.weight", (70, 5)), ("d.weight", (1, 9))])
    codec = ErrorFeedback(OneBit(layout))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(3):
            for kept in (memory, memory_here):  # what is left of means is no multiple of a sixteenth
                kept.residual = kept.residual.mul(16).round().div(16)
            values = vector(layout.size, step).mul(16).round().div(16)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(memory.residual.cpu(), memory_here.residual)


@on_devices
@settings(max_examples=10, deadline=None)
@given(size=st.sampled_from([1, 9, 1025, 16_500]), seed=seeds, spread=spreads)
def test_one_bits_signs_are_the_same_and_its_means_to_rounding(
    place: Place, size: int, seed: int, spread: float
) -> None:
    codec = OneBit(layout_of(size))
    values = vector(codec.layout.size, seed, spread)
    expected = codec.encode(values)
    with place() as device:
        means, signs = placed(codec, device).encode(values.to(device))
    assert np.allclose(means.cpu().numpy(), expected[0], rtol=1e-6, atol=2.0**-149)
    assert as_bytes([signs]) == [expected[1].tobytes()]


@on_devices
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rows", [True, False])
@settings(max_examples=5, deadline=None)
@given(size=st.sampled_from([1, 9, 1025, 5121]), seed=seeds)
def test_bins_are_the_same_and_their_means_to_rounding(
    place: Place, bits: Literal[2, 4, 8], rows: bool, size: int, seed: int
) -> None:
    codec = Statistical(layout_of(size), bits, rows)
    values = vector(codec.layout.size, seed)
    expected = codec.encode(values)
    with place() as device:
        means, bins = placed(codec, device).encode(values.to(device))
    assert np.allclose(means.cpu().numpy(), expected[0], rtol=1e-6, atol=1e-9)
    assert as_bytes([bins]) == [expected[1].tobytes()]


def is_told_later(place: Place, codec: Codec, values: torch.Tensor, layer: str) -> None:
    """That a value is no number is not seen as it is coded, but told, once, when doubts are settled."""
    with place() as device:
        twin = placed(codec, device)
        doubts.settle()
        twin.encode(values.to(device), Key(0, 0, 0))
        with pytest.raises(CodecError, match=f"{layer}: NaN or infinity among its values"):
            doubts.settle()
        doubts.settle()


@on_devices
@pytest.mark.parametrize("name", CODECS)
def test_a_value_that_is_no_number_is_told_later(place: Place, name: str) -> None:
    codec = CODECS[name](layout_of(3000))
    values = vector(codec.layout.size, 1)
    values[10] = float("nan")
    is_told_later(place, codec, values, r"layer (a\.weight|the vector)")


@on_devices
@pytest.mark.parametrize("name", ["3-bit-random", "qsgd"])
def test_so_it_is_of_a_layer_that_is_not_quantized(place: Place, name: str) -> None:
    codec = CODECS[name](layout_of(100))
    values = vector(codec.layout.size, 1)
    values[101] = float("inf")
    is_told_later(place, codec, values, r"layer a\.bias")


@on_devices
def test_a_codec_without_a_twin_says_so(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    class Stranger(Uniform):
        """Of a plug-in."""

    codec = Stranger(layout_of(1000))
    values = vector(codec.layout.size, 1)
    notes.forget()
    with place() as device:
        there = placed(codec, device)
        placed(codec, device)
        message = there.encode(values.to(device))
        assert as_bytes(list(map(torch.from_numpy, message))) == [buffer.tobytes() for buffer in codec.encode(values)]
        assert there.decode(message).device.type == torch.device(device).type
    assert capsys.readouterr().err.count("Stranger has no messages on the device") == 1


LAUNCHES = {  # of one message of a model of ten layers, where nothing is captured
    "float32": (4, 1),
    "half": (30, 12),
    "ternary": (100, 12),
    "threshold": (45, 12),
    "8-bit": (45, 15),
    "one-bit": (50, 20),
    "qsgd": (70, 30),
    "e3m0": (30, 8),
    "threshold-blockwise": (45, 12),
    "statistical": (110, 12),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_message_takes_few_operations_and_waits_for_nothing(name: str) -> None:
    """However many layers; from the second message on it is a graph, and its inputs and outputs are copied."""
    codec = CODECS[name](Layout.of([(f"l{k}.weight", (40, 100)) for k in range(10)]))
    values = vector(codec.layout.size, 1)
    with standin() as counts:
        twin, there = placed(codec, torch.device("meta")), values.to("meta")
        begun, waits = counts.launches, counts.waits
        first = twin.encode(there, Key(0, 0, 0))
        encoded = counts.launches
        twin.decode(first)
        decoded = counts.launches
        assert encoded - begun <= LAUNCHES[name][0]
        assert decoded - encoded <= LAUNCHES[name][1]
        for step in range(1, 4):
            begun = counts.launches
            twin.decode(twin.encode(there, Key(0, 0, step)))
        assert counts.launches - begun <= 24
        assert counts.waits == waits
