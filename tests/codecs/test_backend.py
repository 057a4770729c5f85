"""Vectors that are not on the CPU: the same bytes, the same values, and nothing moved behind the user's back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import ModuleType
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from elsewhere import PLACES, elsewhere
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs import Key, LevelSum, Ternary, ThresholdTernary, backend, device, kernels
from testbed.codecs.adaptive import Adaptive
from testbed.codecs.base import Buffers, Codec
from testbed.codecs.blockwise import BlockTernary, BlockThresholdTernary
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.device import planar
from testbed.codecs.dgc import DGC
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.floats import Float32
from testbed.codecs.half import Half
from testbed.codecs.kernels.threads import CHUNK
from testbed.codecs.memory import ErrorFeedback, Remembering
from testbed.codecs.onebit import OneBit
from testbed.codecs.qsgd import QSGD
from testbed.codecs.sparse import Sparse
from testbed.codecs.statistical import Statistical
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Rounding, Uniform
from testbed.errors import CodecError
from testbed.layout import Layout

Place = Callable[[], AbstractContextManager[torch.device]]
# At and around every block boundary: 5 x 1024 and 8 x 1024 elements, bytes of five digits or eight bits, one, none.
SIZES = [0, 1, 2, 5, 6, 8, 9, 1023, 1025, 5119, 5120, 5121, 8191, 8192, 8193, 10_245, 16_500]

on_devices = pytest.mark.parametrize("place", PLACES)
seeds = st.integers(0, 2**32)
spreads = st.sampled_from([0, 2, 45])  # orders of magnitude: alike, as in a gradient, from denormal to huge

EXACT: dict[str, Callable[[Layout], Codec]] = {
    "float32": Float32,
    "half": Half,
    **{
        f"{bits}-bit-{rounding}": partial(Uniform, bits=bits, rounding=rounding)
        for bits in (1, 3, 8)
        for rounding in get_args(Rounding)
    },
    "uniform-weights": lambda layout: Uniform(layout, 4, chosen=lambda layer: not layer.bias),
    "e3m0": E3M0,
    "chunked": lambda layout: ChunkedTopK(layout, 0.02, 100),
    "statistical": Statistical,
    "statistical-rows": lambda layout: Statistical(layout, 4, rows=True),
    "top-k": lambda layout: TopK(layout, 0.02),
    "top-k-half": lambda layout: TopK(layout, 0.5, "float16", dense_biases=True),
    "top-k-ternary": lambda layout: TopK(layout, 0.2, "ternary"),
    "sparse": Sparse,
    "thresholded": lambda layout: Thresholded(layout, 0.7),
    "thresholded-signs": lambda layout: Thresholded(layout, 0.7, limit=1),
    "thresholded-multiples": lambda layout: Thresholded(layout, 0.3, limit=255),
    "multiples": lambda layout: SparseMultiples(layout, 0.25, 1020),
    "qsgd": lambda layout: QSGD(layout, smallest=8),
    "qsgd-elias": lambda layout: QSGD(layout, 1, coding="elias", smallest=0),
    "qsgd-finest": lambda layout: QSGD(layout, 127, 8192, smallest=0),
    "qsgd-finest-elias": lambda layout: QSGD(layout, 127, 1, coding="elias", smallest=0),
}
SCALED: dict[str, Callable[[Layout], Codec]] = {  # their scales are sums, equal to rounding only
    "ternary": Ternary,
    "ternary-unclipped": lambda layout: Ternary(layout, clip=None, float_last=False),
    "ternary-one-scale": lambda layout: Ternary(layout, layerwise=False),
    "threshold": ThresholdTernary,
    "block": BlockTernary,
    "block-unclipped": lambda layout: BlockTernary(layout, clip=None),
    "block-threshold": BlockThresholdTernary,
    "one-bit": OneBit,
    "qsgd-euclidean": lambda layout: QSGD(layout, 22, 256, "euclidean", smallest=8),
    "adaptive": Adaptive,
    "adaptive-fine": lambda layout: Adaptive(layout, 0.002),
}
CODECS = EXACT | SCALED
FED_BACK: dict[str, Callable[[Layout], Adaptive | BlockThresholdTernary | OneBit | Thresholded | Uniform]] = {
    "block-threshold": BlockThresholdTernary,
    "one-bit": OneBit,
    "3-bit": lambda layout: Uniform(layout, 3),
    "8-bit-random": lambda layout: Uniform(layout, 8, "random", lambda layer: not layer.bias),
    "adaptive": Adaptive,
    "thresholded": lambda layout: Thresholded(layout, 0.7),
}
REMEMBERING: dict[str, Callable[[Layout], Remembering]] = {
    "fused": lambda layout: ErrorFeedback(OneBit(layout)),
    "apart": lambda layout: ErrorFeedback(TopK(layout, 0.1)),
    "adaptive": lambda layout: ErrorFeedback(Adaptive(layout)),
    "multiples": lambda layout: ErrorFeedback(Thresholded(layout, 0.3, limit=255)),
    "dgc": lambda layout: DGC(layout, 4, sparsity=0.9, warmup_epochs=2),
    "dgc-nesterov": lambda layout: DGC(layout, 4, sparsity=0.99, nesterov=True, clip_norm=1.0, values="float16"),
    "dgc-plain": lambda layout: DGC(layout, 4, sparsity=0.9, momentum=0.0, values="ternary", dense_biases=True),
    "dgc-unmasked": lambda layout: DGC(layout, 4, sparsity=0.9, masking=False, warmup_epochs=0),
}


def layout_of(size: int) -> Layout:
    return Layout.of([("a.weight", (1, size)), ("a.bias", (7,)), ("b.weight", (3, size)), ("last.weight", (2, 3))])


def vector(size: int, seed: int, spread: float = 0.0) -> torch.Tensor:
    """Normal values with zeros of both signs and equal magnitudes among them."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(size) * 10.0 ** random.uniform(-spread, 0.8 * spread, size)
    values[random.random(size) < 0.2] = 0.0
    values[random.random(size) < 0.1] = -0.0
    values[random.random(size) < 0.1] = -0.5
    return torch.from_numpy(values.astype(np.float32))


def as_bytes(buffers: Buffers) -> list[bytes]:
    return [buffer.tobytes() for buffer in buffers]


def encoded(codec: Codec, values: torch.Tensor, key: Key, place: Place) -> Buffers:
    with place() as device:
        return codec.encode(values.to(device), key)


def decoded(codec: Codec | LevelSum, buffers: Buffers, place: Place) -> torch.Tensor:
    with place() as device:
        out = torch.full((codec.layout.size,), 9.0, device=device)
        assert codec.decode(buffers, out) is out
        return out.cpu()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.view(torch.int32).equal(other.view(torch.int32))


@pytest.mark.slow
@on_devices
@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=4, deadline=None)
@given(size=st.sampled_from(SIZES), seed=seeds, spread=spreads)
def test_messages_are_the_same_to_the_byte(place: Place, name: str, size: int, seed: int, spread: float) -> None:
    """Where scales are sums, they are equal to 1e-6, and the rest is the same where they are the same.

    A deviation is a difference of sums, which cancel where values are alike: it is equal to 1e-6 of the values.
    """
    codec = CODECS[name](layout_of(size))
    values, key = vector(codec.layout.size, seed, spread), Key(seed, 3, 5)
    expected = codec.encode(values, key)
    found = encoded(codec, values, key, place)
    if name in SCALED:
        smallest = 2.0**-149  # which has no digits
        assert np.allclose(found[0], expected[0], rtol=1e-6, atol=max(1e-6 * values.abs().max().item(), smallest))
    if name in EXACT or as_bytes(found[:1]) == as_bytes(expected[:1]):
        assert as_bytes(found) == as_bytes(expected)
    assert [buffer.dtype for buffer in found] == [buffer.dtype for buffer in expected]
    assert same_bits(decoded(codec, found, place), codec.decode(found))


@on_devices
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("size", [5121, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 16_500))])
def test_messages_of_exact_sums_are_the_same_to_the_byte(place: Place, name: str, size: int) -> None:
    codec, key = SCALED[name](layout_of(size)), Key(1, 2, 3)
    values = vector(codec.layout.size, size).mul(16).round().div(16)
    assert as_bytes(encoded(codec, values, key, place)) == as_bytes(codec.encode(values, key))


@on_devices
@pytest.mark.parametrize("clip", [2.5, *(pytest.param(clip, marks=pytest.mark.slow) for clip in (None, 0.5))])
@pytest.mark.parametrize("layerwise", [True, pytest.param(False, marks=pytest.mark.slow)])
@settings(max_examples=4, deadline=None)
@given(size=st.sampled_from(SIZES), seed=seeds, spread=spreads, share=st.sampled_from([1.0, 1.5, 1e6]))
def test_ternary_on_given_scales_is_the_same_to_the_byte(
    place: Place, clip: float | None, layerwise: bool, size: int, seed: int, spread: float, share: float
) -> None:
    codec = Ternary(layout_of(size), clip, layerwise=layerwise)
    values, key = vector(codec.layout.size, seed, spread / 2), Key(seed, seed % 7, -seed)
    limits = codec.limits(values)
    scales = limits.scales * np.float32(share)
    with place() as device:
        found = codec.encode(values.to(device), key, scales, limits)
    assert as_bytes(found) == as_bytes(codec.encode(values, key, scales, limits))


@pytest.mark.slow
@on_devices
def test_the_kernels_chunks_leave_no_trace(place: Place) -> None:
    layout = Layout.of([("a.weight", (CHUNK + 5125,)), ("b.weight", (1,))])
    values, key = vector(layout.size, 8), Key(1, 2, 3)
    ternary = Ternary(layout)
    limits = ternary.limits(values)
    with place() as device:
        assert as_bytes(ternary.encode(values.to(device), key, None, limits)) == as_bytes(
            ternary.encode(values, key, None, limits)
        )
    codec = Uniform(layout, 3, "random")
    assert as_bytes(encoded(codec, values, key, place)) == as_bytes(codec.encode(values, key))
    signs = OneBit(layout)
    assert as_bytes(encoded(signs, values, key, place)[1:]) == as_bytes(signs.encode(values)[1:])


@on_devices
@pytest.mark.parametrize("codec", [BlockTernary, BlockThresholdTernary])
def test_blocks_of_the_same_scale_are_the_same_to_the_byte(
    place: Place, codec: type[BlockTernary | BlockThresholdTernary], cifarnet: Layout, gradient: torch.Tensor
) -> None:
    coder = codec(cifarnet)
    expected, found = coder.encode(gradient, Key(1, 2, 3)), encoded(coder, gradient, Key(1, 2, 3), place)
    agreeing, start = 0, 0
    for index, size in enumerate(np.diff([*_first_bytes(coder), coder.trit_bytes])):
        block = slice(start, start + size)
        start += size
        if expected[0][index] == found[0][index]:
            agreeing += 1
            assert np.array_equal(expected[2][block], found[2][block])
    assert agreeing > 0.8 * coder.scale_count


def _first_bytes(coder: BlockTernary | BlockThresholdTernary) -> list[int]:
    """Of each block of all layers."""
    return [first for run in coder.runs for first in range(run.start, run.stop, planar.SEGMENT)]


@on_devices
@pytest.mark.parametrize("name", FED_BACK)
@settings(max_examples=4, deadline=None)
@given(size=st.sampled_from(SIZES), seed=seeds, spread=spreads)
def test_the_residual_is_what_the_message_leaves(place: Place, name: str, size: int, seed: int, spread: float) -> None:
    codec = FED_BACK[name](layout_of(size))
    values, kept = vector(codec.layout.size, seed, spread), vector(codec.layout.size, seed + 1, spread)
    with place() as device:
        residual = kept.to(device)
        buffers = codec.encode_with_feedback(values.to(device), residual, Key(seed, 0, 0))
        left = residual.cpu()
    left_here = kept.clone()
    expected = codec.encode_with_feedback(values, left_here, Key(seed, 0, 0))
    assert torch.equal(left, (values + kept) - codec.decode(buffers))
    if not isinstance(codec, BlockThresholdTernary | OneBit | Adaptive) or as_bytes(buffers[:1]) == as_bytes(
        expected[:1]
    ):  # these have sums for scales
        assert as_bytes(buffers) == as_bytes(expected)
        assert torch.equal(left, left_here)


@pytest.mark.slow
@on_devices
def test_importance_weighs_alike(place: Place, cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec, importance = ThresholdTernary(cifarnet), gradient.flip(0).abs()
    expected = codec.encode(gradient, importance=importance)
    with place() as device:
        there = gradient.to(device)
        found = codec.encode(there, importance=importance.to(device))
        quantized = codec.quantize(there, importance.to(device))
        assert quantized.device == there.device
        assert same_bits(quantized.cpu(), codec.decode(found))
        with pytest.raises(CodecError, match=r"conv1\.weight: an importance is finite and at least 0"):
            codec.encode(there, importance=-importance.to(device))
        with pytest.raises(CodecError, match="is there too, not on cpu"):
            codec.encode(there, importance=importance)
    assert np.allclose(found[0], expected[0], rtol=1e-6)
    assert np.mean(found[2] != expected[2]) < 1e-4


@on_devices
@pytest.mark.parametrize("workers", [1, 3, pytest.param(200, marks=pytest.mark.slow)])
@settings(max_examples=4, deadline=None)
@given(size=st.sampled_from(SIZES), seed=seeds, spread=spreads)
def test_the_mean_of_a_sum_is_the_same(place: Place, workers: int, size: int, seed: int, spread: float) -> None:
    ternary = Ternary(layout_of(size))
    values = vector(ternary.layout.size, seed, spread / 2)
    messages = [ternary.encode(values, Key(seed, worker, 0)) for worker in range(min(workers, 5))]
    total = LevelSum(ternary, workers)
    buffers = total.encode(total.sum(messages[i % len(messages)] for i in range(workers)))
    assert same_bits(decoded(total, buffers, place), total.decode(buffers))
    if size and workers == 3:
        buffers[2][:] = 255  # levels of 7, where 2 * 3 is the largest
        with pytest.raises(CodecError, match=r"layer a\.weight: a level beyond -3 \.\. 3"):
            decoded(total, buffers, place)


@on_devices
def test_the_first_of_equal_magnitudes_are_kept(place: Place) -> None:
    values = torch.tensor([1.0, -3.0, 2.0, 3.0, 0.0, -2.0, 2.0, -0.0, 2.0, 3.0] * 1000)
    codec = TopK(Layout.of([("w.weight", (1, len(values)))]), 0.45)
    assert as_bytes(encoded(codec, values, Key(0, 0, 0), place)) == as_bytes(codec.encode(values))


@on_devices
def test_messages_add_up_there(place: Place) -> None:
    layout = layout_of(5121)
    codec, values, total = Sparse(layout), vector(layout.size, 1), vector(layout.size, 2)
    with place() as device:
        there = total.to(device)
        codec.add(codec.encode(values.to(device)), there)
        assert torch.equal(there.cpu(), total + values)


@on_devices
@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("size", [1000, *(pytest.param(size, marks=pytest.mark.slow) for size in (0, 5121))])
def test_a_sender_remembers_where_its_vectors_are(place: Place, name: str, size: int) -> None:
    """From its first message there on; a message with scales that are sums is equal to their 1e-6."""
    codec = REMEMBERING[name](layout_of(size))
    memory, memory_here = codec.start(), codec.start()
    for step in range(4):
        values = vector(codec.layout.size, step)
        expected = codec.encode(values, Key(0, 0, step), memory_here)
        with place() as device:
            there = values.to(device)
            found = codec.encode(there, Key(0, 0, step), memory)
            for kept, kept_here in zip(vars(memory).values(), vars(memory_here).values(), strict=True):
                assert kept.device == there.device
                assert torch.allclose(kept.cpu(), kept_here, rtol=1e-5, atol=1e-6)
                assert name in ("fused", "adaptive") or same_bits(kept.cpu(), kept_here)
        assert np.allclose(found[0], expected[0], rtol=1e-6)
        assert as_bytes(found[1:]) == as_bytes(expected[1:])


@on_devices
@pytest.mark.parametrize("name", REMEMBERING)
def test_a_refused_vector_is_not_remembered(place: Place, name: str) -> None:
    codec = REMEMBERING[name](layout_of(100))
    memory, broken = codec.start(), vector(codec.layout.size, 0)
    broken[101] = float("nan")
    with place() as device, pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity"):
        codec.encode(broken.to(device), Key(0, 0, 0), memory)
    if name != "fused":  # which goes over memory once, see `OneBit.encode_with_feedback`
        assert not any(kept.cpu().any() for kept in vars(memory).values())


INFINITE = [float("inf"), -float("inf")]
SLOW = ("block", "block-unclipped", "qsgd-finest", "qsgd-finest-elias")


@on_devices
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CODECS]
)
@pytest.mark.parametrize("value", [float("nan"), *(pytest.param(inf, marks=pytest.mark.slow) for inf in INFINITE)])
def test_nan_and_infinity_are_refused_by_the_layers_name(place: Place, name: str, value: float) -> None:
    codec = CODECS[name](layout_of(5200))
    for layer in codec.layout:
        broken = vector(codec.layout.size, 0)
        broken[layer.end - 1] = value
        with pytest.raises(CodecError, match=rf"layer {layer.name}: NaN or infinity"):
            encoded(codec, broken, Key(0, 0, 0), place)


@on_devices
@pytest.mark.parametrize("coding", ["fixed", "elias"])
def test_malformed_levels_are_refused_there(place: Place, coding: Literal["fixed", "elias"]) -> None:
    codec = QSGD(layout_of(100), coding=coding, smallest=0)
    buffers = codec.encode(vector(codec.layout.size, 0), Key(0, 0, 0))
    buffers[2][:] = 255  # a level of 15, where 14 stands for +7; a stream of as many bytes as there are not
    with pytest.raises(CodecError, match="level"):
        decoded(codec, buffers, place)


@on_devices
def test_vectors_of_another_shape_or_place_are_refused(place: Place) -> None:
    codec = OneBit(layout_of(100))
    size = codec.layout.size
    with place() as device:
        there = torch.zeros(size, device=device)
        with pytest.raises(CodecError, match="flat float32 vector"):
            codec.encode(there[1:])
        with pytest.raises(CodecError, match="flat float32 vector"):
            codec.encode(there.double())
        with pytest.raises(CodecError, match="is there too, not on cpu"):
            codec.encode_with_feedback(there, torch.zeros(size))
        with pytest.raises(CodecError, match="contiguous"):
            codec.decode(codec.encode(there), torch.zeros(size, 2, device=device)[:, 0])


@pytest.mark.parametrize("name", device.__all__)
def test_both_backends_have_the_same_functions(name: str) -> None:
    """A codec names a function without knowing the backend, so its parameters are the same, in the same order."""
    there, here = (_functions(getattr(package, name)) for package in (device, kernels))
    shared = there.keys() & here.keys()
    assert shared
    assert {function: there[function] for function in shared} == {function: here[function] for function in shared}


def _functions(module: ModuleType) -> dict[str, list[str]]:
    """The parameters of what a module itself offers to codecs."""
    own = {name: thing for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
    return {
        name: list(inspect.signature(thing).parameters)
        for name, thing in own.items()
        if callable(thing) and not name.startswith("_")
    }


def test_what_is_on_the_cpu_is_for_the_kernels() -> None:
    assert backend.of(np.zeros(1)) is backend.of(torch.zeros(1)) is kernels
    with elsewhere() as place:
        assert backend.of(torch.zeros(1).to(place)) is device


def test_counters_wrap_at_32_bits() -> None:
    near, far = planar.hashed(5, 100, 7, torch.device("cpu")), planar.hashed(2**32 + 5, 100, 7, torch.device("cpu"))
    assert torch.equal(near, far)
    across = planar.hashed(2**31 - 50, 100, 7, torch.device("cpu"))
    assert torch.equal(across[50:], planar.hashed(2**31, 50, 7, torch.device("cpu")))
    assert len(set(across.tolist())) == 100


def test_the_stand_in_for_a_gpu_refuses_what_a_gpu_would() -> None:
    with elsewhere() as device:
        there = torch.arange(6.0).to(device)
        assert there.device != torch.device("cpu")
        with pytest.raises(RuntimeError, match="here and elsewhere"):
            there + torch.ones(6)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()
        there[2:4] += 10.0
        assert (there * 2).cpu().tolist() == [0.0, 2.0, 24.0, 26.0, 8.0, 10.0]
