"""Sparse messages that stay on the device: the CPU's bytes, made with one wait each, and read with none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from elsewhere import PLACES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_backend import Place, layout_of, same_bits, seeds, spreads, vector

from testbed.codecs import Key
from testbed.codecs.changes import Changes
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.dct import Blocks, Frequencies
from testbed.codecs.dgc import DGC
from testbed.codecs.lossless import rice
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.resident import placed
from testbed.codecs.resident.rice import BYTE, Rice
from testbed.codecs.sparse import Sparse, SparseCodec
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.errors import CodecError
from testbed.gpu import doubts
from testbed.gpu.places import add_whole, scattered
from testbed.gpu.standin import DEVICE, standin
from testbed.layout import Layout

pytestmark = pytest.mark.slow  # many pairs of codecs, on an imitated device

on_devices = pytest.mark.parametrize("place", PLACES)

CODECS: dict[str, Callable[[Layout], SparseCodec]] = {
    "sparse": Sparse,
    "thresholded": lambda layout: Thresholded(layout, 0.7),
    "thresholded-few": lambda layout: Thresholded(layout, 2.2),
    "thresholded-signs": lambda layout: Thresholded(layout, 0.7, limit=1),
    "thresholded-multiples": lambda layout: Thresholded(layout, 0.3, limit=255),
    "multiples": lambda layout: SparseMultiples(layout, 0.25, 1020),
    "top-k": lambda layout: TopK(layout, 0.02),
    "top-k-half": lambda layout: TopK(layout, 0.5, "float16", dense_biases=True),
    "top-k-ternary": lambda layout: TopK(layout, 0.2, "ternary"),
    "chunked": lambda layout: ChunkedTopK(layout, 0.02, 1000),
    "chunked-exact": lambda layout: ChunkedTopK(layout, 0.02, 1000, exact=True),
}
SCALED = ("top-k-ternary", "chunked")  # their scales are sums, equal to rounding only
FED_BACK = [name for name in CODECS if name.startswith("thresholded")]


def as_bytes(buffers: list[torch.Tensor]) -> list[bytes]:
    return [buffer.cpu().contiguous().numpy().tobytes() for buffer in buffers]


@on_devices
@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=6, deadline=None)
@given(size=st.sampled_from([0, 1, 63, 1025, 5121]), seed=seeds, spread=spreads)
def test_messages_are_the_same_to_the_byte(place: Place, name: str, size: int, seed: int, spread: float) -> None:
    """Of any order of magnitude; the second is captured where it keeps about as much."""
    codec = CODECS[name](layout_of(size))
    with place() as device:
        twin = placed(codec, device)
        for step in range(2):
            values = vector(codec.layout.size, seed + step, 0 if name in SCALED else spread)
            if name in SCALED:
                values = values.mul(16).round().div(16)  # of which sums are exact
            expected, found = codec.encode(values), twin.encode(values.to(device))
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(twin.decode(found).cpu(), codec.decode(expected))


@on_devices
@pytest.mark.parametrize("name", FED_BACK)
@pytest.mark.parametrize("size", [0, 9, 5121])
def test_what_a_message_leaves_is_fed_back_alike(place: Place, name: str, size: int) -> None:
    codec = ErrorFeedback(CODECS[name](layout_of(size)))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(4):
            values = vector(codec.layout.size, size + step)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(memory.residual.cpu(), memory_here.residual)


DGCS: dict[str, Callable[[Layout], DGC]] = {
    "momentum": lambda layout: DGC(layout, 4, sparsity=0.9, warmup_epochs=2),
    "nesterov": lambda layout: DGC(layout, 4, sparsity=0.99, nesterov=True, clip_norm=1.0, values="float16"),
    "plain": lambda layout: DGC(layout, 4, sparsity=0.9, momentum=0.0, values="ternary", dense_biases=True),
    "unmasked": lambda layout: DGC(layout, 4, sparsity=0.9, masking=False, warmup_epochs=0),
}


@on_devices
@pytest.mark.parametrize("name", DGCS)
@pytest.mark.parametrize("size", [0, 9, 5121])
def test_dgc_remembers_alike(place: Place, name: str, size: int) -> None:
    """A warm-up of two steps, each with a size of its own, and three steps of the last; scales equal to rounding."""
    codec = DGCS[name](layout_of(size))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(5):
            values = vector(codec.layout.size, size + step)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            if name == "plain":
                assert np.allclose(found[2].cpu().view(torch.float32), expected[2], rtol=1e-6)
            assert [each.nbytes for each in found] == [each.nbytes for each in expected]
            assert as_bytes(found[:2]) == [buffer.tobytes() for buffer in expected[:2]]
            for kept, kept_here in zip(vars(memory).values(), vars(memory_here).values(), strict=True):
                assert kept.device.type == torch.device(device).type
                assert torch.allclose(kept.cpu(), kept_here, rtol=1e-5, atol=1e-6)
                assert name in ("plain", "nesterov") or same_bits(kept.cpu(), kept_here)
            if name not in ("plain", "nesterov"):
                assert as_bytes(found) == [buffer.tobytes() for buffer in expected]


CHANGES: dict[str, Callable[[Layout], Changes]] = {
    "exact": lambda layout: Changes(layout, 0.01, "float32", 0.9),
    "half": lambda layout: Changes(layout, 0.1, "float16", 0.5),
    "ternary": lambda layout: Changes(layout, 0.1, "ternary", 0.0),
}


@on_devices
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("size", [0, 9, 5121])
def test_changes_are_remembered_alike(place: Place, name: str, size: int) -> None:
    """The first message is whole; scales are equal to rounding, and so is then the estimate."""
    codec = CHANGES[name](layout_of(size))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(4):
            values = vector(codec.layout.size, size + step)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert [each.nbytes for each in found] == [each.nbytes for each in expected]
            assert memory.begun
            for kept, kept_here in ((memory.momentum, memory_here.momentum), (memory.estimate, memory_here.estimate)):
                assert kept.device.type == torch.device(device).type
                assert torch.allclose(kept.cpu(), kept_here, rtol=1e-5, atol=1e-6)
            if name != "ternary":
                assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
                assert same_bits(memory.estimate.cpu(), memory_here.estimate)


@on_devices
@pytest.mark.parametrize("size", [0, 9, 5120])
def test_frequencies_are_remembered_alike(place: Place, size: int) -> None:
    """To 1e-5, as products of matrices are; what is sent and what is left add up there, too."""
    layout = layout_of(size)
    codec = Frequencies(layout, Blocks(layout, 64), 256, 0.9)
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(4):
            values = vector(layout.size, size + step)
            whole = memory.momentum.cpu() * 0.9 + values
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            sent = twin.decode(found).cpu()
            assert memory.momentum.device.type == torch.device(device).type
            assert torch.allclose(memory.momentum.cpu() + codec.blocks.inverse(sent), whole, atol=1e-5)
            assert torch.allclose(sent, codec.decode(expected), atol=1e-5)
            assert torch.allclose(memory.momentum.cpu(), memory_here.momentum, atol=1e-5)


@pytest.mark.parametrize("name", ["changes", "frequencies"])
def test_a_message_that_is_remembered_waits_once(name: str) -> None:
    layout = Layout.of([(f"l{k}.weight", (40, 100)) for k in range(10)])
    codec = CHANGES["exact"](layout) if name == "changes" else Frequencies(layout, Blocks(layout, 64), 32, 0.9)
    memory = codec.start()
    with standin() as counts:
        twin = placed(codec, DEVICE)
        for step in range(4):
            values = vector(layout.size, step).to(DEVICE)
            waits, begun = counts.waits, counts.launches
            twin.decode(twin.encode(values, Key(0, 0, step), memory))
            assert counts.waits == waits + 1
        assert counts.launches - begun <= 20


@on_devices
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["changes", "frequencies"])
def test_what_is_remembered_tells_later_of_a_value_that_is_no_number(place: Place, name: str, value: float) -> None:
    layout = layout_of(100)
    codec = CHANGES["exact"](layout) if name == "changes" else Frequencies(layout, Blocks(layout, 64), 400, 0.9)
    values = vector(layout.size, 1)
    values[101] = value
    with place() as device:
        twin, memory = placed(codec, device), codec.start()
        doubts.settle()
        twin.encode(values.to(device), Key(0, 0, 0), memory)
        with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity among its values"):
            doubts.settle()


@on_devices
@settings(max_examples=6, deadline=None)
@given(size=st.sampled_from([1, 63, 1025, 5121]), seed=seeds)
def test_bins_of_chunks_are_the_same_and_their_means_to_rounding(place: Place, size: int, seed: int) -> None:
    codec = ChunkedTopK(layout_of(size), 0.1, 100)
    values = vector(codec.layout.size, seed)
    expected = codec.encode(values)
    with place() as device:
        counts, gaps, means, bins = placed(codec, device).encode(values.to(device))
    assert as_bytes([counts, gaps, bins]) == [buffer.tobytes() for buffer in (*expected[:2], expected[3])]
    assert np.allclose(means.cpu().view(torch.float32), expected[2], rtol=1e-6, atol=1e-9)


@on_devices
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_dgc_tells_later_of_a_value_that_is_no_number(place: Place, value: float) -> None:
    """Though the gradient is clipped by a norm that is none."""
    codec = DGC(layout_of(100), 4, sparsity=0.9, clip_norm=1.0)
    values = vector(codec.layout.size, 1)
    values[101] = value
    with place() as device:
        twin, memory = placed(codec, device), codec.start()
        doubts.settle()
        twin.encode(values.to(device), Key(0, 0, 0), memory)
        with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity among its values"):
            doubts.settle()


@on_devices
def test_the_first_of_equal_magnitudes_are_kept(place: Place) -> None:
    values = torch.tensor([1.0, -3.0, 2.0, 3.0, 0.0, -2.0, 2.0, -0.0, 2.0, 3.0] * 1000)
    codec = TopK(Layout.of([("w.weight", (1, 4000)), ("v.weight", (1, 6000))]), 0.45)
    with place() as device:
        found = placed(codec, device).encode(values.to(device))
    assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values)]


@on_devices
def test_a_message_may_keep_another_fraction(place: Place) -> None:
    codec = TopK(layout_of(1025), 0.1)
    values = vector(codec.layout.size, 1)
    with place() as device:
        twin = placed(codec, device)
        for kept in (None, 0.5, 0.001, None, 1.0):
            found = twin.encode(values.to(device), kept=kept)
            assert as_bytes(found) == [buffer.tobytes() for buffer in codec.encode(values, kept=kept)]


@on_devices
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_value_that_is_no_number_is_told_later(place: Place, name: str, value: float) -> None:
    """Until then its message can be read."""
    codec = CODECS[name](layout_of(100))
    values = vector(codec.layout.size, 1)
    values[101] = value
    with place() as device:
        twin = placed(codec, device)
        doubts.settle()
        assert twin.decode(twin.encode(values.to(device))).shape == values.shape
        with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity among its values"):
            doubts.settle()


@on_devices
def test_messages_add_up_there(place: Place) -> None:
    codec = Sparse(layout_of(1025))
    values, total = vector(codec.layout.size, 1), vector(codec.layout.size, 2)
    with place() as device:
        twin, there = placed(codec, device), total.to(device)
        twin.add(twin.encode(values.to(device)), there)
        assert torch.equal(there.cpu(), total + values)


@on_devices
def test_a_message_that_keeps_far_more_than_the_last_is_made_again(place: Place) -> None:
    codec = Sparse(layout_of(16_500))
    with place() as device:
        twin = placed(codec, device)
        for filled in (0.0, 0.001, 0.1, 1.0, 0.001, 0.0, 1.0):
            values = vector(codec.layout.size, 1) * (torch.arange(codec.layout.size) % 1000 < 1000 * filled)
            expected, found = codec.encode(values), twin.encode(values.to(device))
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert same_bits(twin.decode(found).cpu(), codec.decode(expected))


@on_devices
def test_a_message_of_another_codec_is_refused(place: Place) -> None:
    whole, signs = Thresholded(layout_of(100), 0.7), Thresholded(layout_of(100), 0.7, limit=1)
    values = vector(whole.layout.size, 1)
    with place() as device:
        twin = placed(whole, device)
        with pytest.raises(CodecError, match="a message of 5 buffers"):
            twin.decode(placed(signs, device).encode(values.to(device)))
        counts, gaps, *rest = twin.encode(values.to(device))
        with pytest.raises(CodecError, match="gaps: 20000 bytes are more than any message"):
            twin.decode([counts, gaps.new_zeros(20_000), *rest])


@pytest.mark.parametrize("name", CODECS)
def test_a_message_waits_once_and_takes_few_operations(name: str) -> None:
    """For its sizes; reading it waits for nothing, and from the second message of a size on all is captured."""
    codec = CODECS[name](Layout.of([(f"l{k}.weight", (40, 100)) for k in range(10)]))
    total = torch.zeros(codec.layout.size)
    with standin() as counts:
        twin, sums = placed(codec, DEVICE), total.to(DEVICE)
        for step in range(4):
            values = vector(codec.layout.size, step).to(DEVICE)
            waits, begun = counts.waits, counts.launches
            message = twin.encode(values)
            if step:  # how much the first keeps, nobody knows before
                assert counts.waits == waits + 1
            waits = counts.waits
            twin.decode(message)
            twin.add(message, sums)
            assert counts.waits == waits
        assert counts.launches - begun <= 16


# --- Rice codes -----------------------------------------------------------------------------------------------------

numbers_of_sections = st.lists(
    st.lists(st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 2**20)), max_size=12), min_size=1, max_size=6
)


@on_devices
@settings(max_examples=40, deadline=None)
@given(sections=numbers_of_sections, spare=st.integers(1, 9))
@example(sections=[[number] for number in range(200)], spare=1)  # every parameter's edges
@example(sections=[[low, high] for low in (0, 1, 7) for high in range(3, 100)], spare=1)
def test_rice_codes_are_the_same_to_the_byte(place: Place, sections: list[list[int]], spare: int) -> None:
    numbers = np.array([number for section in sections for number in section], np.uint32)
    counts = np.array([len(section) for section in sections], np.int64)
    room = numbers.size + spare
    streams = np.zeros((2, room), np.int64)
    streams[:, : numbers.size] = numbers, numbers // 7
    expected = [rice.pack(each, counts).tobytes() for each in (numbers, numbers // 7)]
    with place() as device:
        there = Rice(len(sections), room, 2**20, 21 * room, torch.device(device))
        fall = there.sections(torch.from_numpy(counts).to(device))
        packed, used = there.pack(torch.from_numpy(streams).to(device), fall)
        assert [bytes(part[:size]) for part, size in zip(packed.cpu().numpy(), used.cpu(), strict=True)] == expected
        assert np.array_equal(there.unpack(packed, fall).cpu().numpy(), streams)


def test_what_fills_up_a_room_is_for_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device takes those that are for one place one after the other."""
    counted = []

    def note(vector: torch.Tensor, places: torch.Tensor, numbers: torch.Tensor) -> None:
        counted.append(int(places.bincount().max()))
        add_whole(vector, places, numbers)

    monkeypatch.setattr("testbed.codecs.resident.rice.add_whole", note)
    room, there = 1 << 16, torch.device("cpu")
    numbers = torch.zeros(1, room, dtype=torch.int64)
    coder = Rice(1, room, 2**20, 4 * room, there)
    coder.pack(numbers, coder.sections(torch.tensor([room // 3])))
    assert counted[0] <= 6 * BYTE  # for a byte come eight numbers, each in six parts


def test_values_are_put_to_their_places_in_any_order_and_all_else_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    scatter = torch.Tensor.scatter

    def note(*arguments: Any) -> torch.Tensor:
        held.append(torch.are_deterministic_algorithms_enabled())
        return scatter(*arguments)

    monkeypatch.setattr(torch.Tensor, "scatter", note)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        vector = scattered(torch.zeros(4), torch.tensor([2, 0, 3, 3]), torch.tensor([1.0, 2.0, 5.0, 7.0]))
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert held == [False] and vector[:-1].tolist() == [2.0, 0.0, 1.0]
