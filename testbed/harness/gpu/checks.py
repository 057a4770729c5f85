"""Whether a device's codecs make the bytes that the CPU's make, and how fast they are against a copy there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.codecs import Key, LevelSum, Ternary, ThresholdTernary
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.floats import Float32
from testbed.codecs.half import Half
from testbed.codecs.kernels.absent import is_absent
from testbed.codecs.onebit import OneBit
from testbed.codecs.qsgd import QSGD
from testbed.codecs.resident import placed, twin_of
from testbed.codecs.sparse import Sparse
from testbed.codecs.statistical import Statistical
from testbed.codecs.threshold import Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Uniform
from testbed.gpu.moves import finish
from testbed.layout import Layout

CODECS: dict[str, Callable[[Layout], Any]] = {
    "float32": Float32,
    "float16": Half,
    "ternary": Ternary,
    "ternary, one scale": lambda layout: Ternary(layout, layerwise=False, float_last=False),
    "threshold ternary": ThresholdTernary,
    "uniform 2-bit": lambda layout: Uniform(layout, 2),
    "uniform 4-bit, random": lambda layout: Uniform(layout, 4, "random"),
    "uniform 8-bit": Uniform,
    "1-bit": OneBit,
    "QSGD 4-bit": lambda layout: QSGD(layout, smallest=8),
    "sparse": Sparse,
    "thresholded, multiples": lambda layout: Thresholded(layout, 0.5, 255),
    "top-k 1 %": lambda layout: TopK(layout, 0.01),
    "chunked top-k 1.6 %": lambda layout: ChunkedTopK(layout, 1 / 64),
    "statistical 2-bit": Statistical,
    "E3M0": E3M0,
    "threshold ternary, blockwise": BlockThresholdTernary,
}
ASKED = "ternary"  # of its encoding's speed something is asked
SIZES = (1, 1025, 5121, 8193, 16_500, 270_000)  # of a layer: at and around the blocks' boundaries, and beyond a chunk
CALLS = 3  # the first is not captured, the second captures, the third is another launch
KEY = Key(1, 2, 3)


@dataclass(frozen=True)
class Compared:
    """A codec on vectors of one size: what differs from the CPU, "" for nothing."""

    codec: str
    size: int
    difference: str


def reference() -> str:
    """What the device is compared with."""
    if is_absent():
        return "the same operations on the CPU, since numba is not installed"
    return "the CPU's compiled kernels"


def compare(device: torch.device, sizes: tuple[int, ...] = SIZES) -> Iterator[Compared]:
    """Code vectors whose sums are exact on the device and on the CPU, and decode them; all bytes must be the same."""
    for name, make in CODECS.items():
        for size in sizes:
            yield Compared(name, size, _difference(make(layout_of(size)), device))
    for size in sizes:
        yield Compared("sum of levels", size, _sums_difference(layout_of(size), device))


def layout_of(size: int) -> Layout:
    """Layers of which one has `size` elements."""
    return Layout.of([("a.weight", (1, size)), ("a.bias", (7,)), ("b.weight", (3, size)), ("last.weight", (2, 3))])


def vector(size: int, seed: int) -> Tensor:
    """Normal values in sixteenths, with zeros of both signs and equal magnitudes among them."""
    random = np.random.default_rng(seed)
    values = np.round(random.standard_normal(size) * 16) / 16
    values[random.random(size) < 0.2] = 0.0
    values[random.random(size) < 0.1] = -0.0
    return torch.from_numpy(values.astype(np.float32))


def _difference(codec: Any, device: torch.device) -> str:
    twin, here = placed(codec, device), _here(codec)
    for call in range(CALLS):
        values, key = vector(codec.layout.size, call), Key(1, 2, call)
        found, expected = twin.encode(values.to(device), key), here.encode(values, key)
        if different := _first_different(found, expected):
            return f"call {call}: {different}"
        if not _same(twin.decode(found), here.decode(expected)):
            return f"call {call}: the decoded vector"
    return ""


def _sums_difference(layout: Layout, device: torch.device) -> str:
    ternary = Ternary(layout)
    total, workers = LevelSum(ternary, 4), range(4)
    values = vector(layout.size, 0)
    there = placed(total, device)
    sender, here = _here(ternary), _here(total)
    scales = sender.limits(values).scales
    messages = [sender.encode(values, Key(1, worker, 0), scales) for worker in workers]
    moved = [[_tensor(part).to(device) for part in message] for message in messages]
    for call in range(CALLS):
        found, expected = there.encode(there.sum(moved)), here.encode(here.sum(messages))
        if different := _first_different(found, expected):
            return f"call {call}: {different}"
        if not _same(there.decode(found), here.decode(expected)):
            return f"call {call}: the decoded vector"
    return ""


def _here(codec: Any) -> Any:
    """The codec for the CPU; without numba its twin there."""
    return twin_of(codec, torch.device("cpu")) if is_absent() else codec


def _first_different(found: list[Any], expected: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        a, b = (np.frombuffer(_tensor(each).cpu().numpy().tobytes(), np.uint8) for each in (one, other))
        if len(a) != len(b):
            return f"buffer {number} has {len(a)} bytes, not {len(b)}"
        if different := int((a != b).sum()):
            return f"buffer {number}: {different} of {len(a)} bytes"
    return ""


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.cpu().view(torch.int32), other.cpu().view(torch.int32))


def _tensor(buffer: Any) -> Tensor:
    return buffer if isinstance(buffer, Tensor) else torch.from_numpy(np.array(buffer))


@dataclass(frozen=True)
class Speed:
    """GB of the vector a second, by a codec and by a copy on the same device, interleaved."""

    codec: str
    elements: int
    encode_gbyte_s: float
    decode_gbyte_s: float
    copy_gbyte_s: float

    @property
    def encode_of_copy(self) -> float:
        return self.encode_gbyte_s / self.copy_gbyte_s

    @property
    def decode_of_copy(self) -> float:
        return self.decode_gbyte_s / self.copy_gbyte_s


def speeds(device: torch.device, sizes: tuple[int, ...], rounds: int = 9, calls: int = 10) -> Iterator[Speed]:
    """Time each codec and a copy of the same vector in turn; medians over the rounds. Ternary comes first."""
    others = [(elements, name) for elements in sizes for name in CODECS if name != ASKED]
    values = torch.empty(0, device=device)
    for elements, name in [*((elements, ASKED) for elements in sizes), *others]:
        values = values if len(values) == elements else vector(elements, 0).to(device)
        layout = Layout.of([("a.weight", (1, elements - 6)), ("last.weight", (2, 3))])
        codec = placed(CODECS[name](layout), device)
        yield _speed(name, codec, values, torch.empty_like(values), rounds, calls)


def _speed(name: str, codec: Any, values: Tensor, room: Tensor, rounds: int, calls: int) -> Speed:
    def decode() -> Tensor:
        codec._last = None  # a message that has not been decoded before
        return codec.decode(message)

    message = codec.encode(values, KEY)
    works = (lambda: room.copy_(values), lambda: codec.encode(values, KEY), decode)
    for work in works:
        for _ in range(CALLS):
            work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for taken, work in zip(times, works, strict=True):
            taken.append(_timed(work, calls))
    copy, encoding, decoding = (4.0 * len(values) / median(taken) / 1e9 for taken in times)
    return Speed(name, len(values), encoding, decoding, copy)


def _timed(work: Callable[[], Any], calls: int) -> float:
    """Seconds of one of `calls` calls."""
    finish(work())
    began_s = perf_counter()
    for _ in range(calls):
        made = work()
    finish(made)
    return (perf_counter() - began_s) / calls
