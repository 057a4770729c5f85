"""Sums of ternary messages that share their scales (terngrad, section 3.1: parameter localization, scaler sharing).

The sum of n ternary values on one scale has 2n + 1 levels, scale * {-n .. n}; servers add digits, never floats, and
send ceil(log2(2n + 1)) bits per element back.

A message has three buffers; numbers are little-endian:

1. scales: float32, as in the ternary messages (`testbed.codecs.trits`);
2. floats: the float32 sums of the layers that are not quantized, one after the other;
3. levels: for each ternary layer a run of bits * ceil(size / 8) bytes. A level is raised by n to 0 .. 2n and cut into
   bit planes: a block of 8 segments of 1,024 elements is `bits` planes of 1,024 bytes, lowest bit first; bit s of byte
   j of a plane belongs to element j of segment s. The rest of r elements is a last block with segments of
   ceil(r / 8); bits past the layer's end are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    VectorCodec,
    WireBuffers,
    expect,
    output,
    require_finite,
    room,
    stretches,
    wire_array,
)
from testbed.codecs.kernels import levels as kernels
from testbed.codecs.kernels import planar
from testbed.codecs.ternary import Ternary
from testbed.errors import CodecError
from testbed.layout import Layer


@dataclass(frozen=True)
class Levels:
    """A sum of ternary messages.

    Parameters
    ----------
    count : how many messages it is the sum of
    scales : float32 [scale_count], the scales they share
    floats : float32 [float_size], the sum of their float layers
    raised : uint8 or uint16 [ternary elements], each element's sum of digits plus `count`, layer after layer
    """

    count: int
    scales: np.ndarray
    floats: np.ndarray
    raised: np.ndarray


class LevelSum(VectorCodec):
    """Adds messages of one `Ternary` codec and carries the sum of all `workers` of them.

    Parameters
    ----------
    messages : the codec that the workers encode with
    workers : n, how many messages a complete sum has: a data center's at an LPS, all at the global server
    """

    costs_as = "sum of levels"

    def __init__(self, messages: Ternary, workers: int) -> None:
        if not 1 <= workers <= 32_767:
            raise CodecError(f"a sum of levels is over 1 to 32,767 workers, not {workers}")
        super().__init__(messages.layout)
        self.workers = workers
        self.bits = (2 * workers).bit_length()
        self._format = self.messages = messages
        self._dtype = np.uint8 if 2 * workers <= 255 else np.uint16
        sizes = [layer.size for layer in messages.ternary]
        lengths = [planar.plane_bytes(size, self.bits) for size in sizes]
        self._stretches, self._runs = stretches(sizes), stretches(lengths)
        self._level_count, self._level_bytes = sum(sizes), sum(lengths)
        self.nbytes = 4 * messages.scale_count + 4 * messages.float_size + self._level_bytes

    def sizes(self) -> Sequence[int]:
        return [4 * self._format.scale_count, 4 * self._format.float_size, self._level_bytes]

    def sum(self, messages: Iterable[WireBuffers]) -> Levels:
        """Add ternary messages; the float layers in float32, in the order given.

        Raises
        ------
        CodecError : a message is not one of the codec, there are none or more than `workers`, or their scales differ
        """
        total: Levels | None = None
        for message in messages:
            parts = self._format.check(message)
            total = self._accumulate(total, 1, parts.scales, parts.floats)
            for run, stretch in zip(self._format.runs, self._stretches, strict=True):
                kernels.add_trits(parts.trits[run], total.raised[stretch])
        return _at_least_one(total)

    def add(self, sums: Iterable[Levels]) -> Levels:
        """Add sums of smaller groups, the float layers in float32, in the order given; CodecError as in `sum`."""
        total: Levels | None = None
        for part in sums:
            total = self._accumulate(total, part.count, part.scales, part.floats)
            np.add(total.raised, part.raised, out=total.raised)
        return _at_least_one(total)

    def completed(self, levels: Levels) -> Levels:
        """The sum as if those whose messages are not in it had sent zeros."""
        missing = self.workers - levels.count
        return replace(levels, count=self.workers, raised=levels.raised + self._dtype(missing)) if missing else levels

    def _accumulate(self, total: Levels | None, count: int, scales: np.ndarray, floats: np.ndarray) -> Levels:
        """Count `count` messages more and add their float layers; the levels are for the caller to add."""
        if total is None:
            total = Levels(0, scales.copy(), self._zeros(floats.size, np.float32), self._zeros(self._level_count))
        if total.count + count > self.workers:
            raise CodecError(f"more than {self.workers} messages for a sum over {self.workers} workers")
        different = total.scales != scales
        if different.any():
            name = self._format.scale_name(int(different.argmax()))
            raise CodecError(f"{name}: messages on different scales have no sum; share the scales first")
        with np.errstate(over="ignore"):  # told when the sum is used
            np.add(total.floats, floats, out=total.floats)
        return replace(total, count=total.count + count)

    def _zeros(self, count: int, dtype: Any = None) -> np.ndarray:
        """Of the type of levels, unless another is given."""
        array = self._pool.take(count, dtype or self._dtype)
        array.fill(0)
        return array

    def _copy(self, values: np.ndarray) -> np.ndarray:
        copy = self._pool.take(values.size, values.dtype)
        copy[:] = values
        return copy

    def _mean(self, floats: np.ndarray, count: int) -> np.ndarray:
        return np.divide(floats, np.float32(count), out=self._pool.take(floats.size, np.float32))

    def encode(self, levels: Levels) -> Buffers:
        """Pack a complete sum; CodecError when it is not over all `workers`, or its float layers overflowed."""
        self._require_complete(levels)
        packed = self._pool.take(self._level_bytes)
        for run, stretch in zip(self._runs, self._stretches, strict=True):
            planar.pack(levels.raised[stretch], packed[run], self.bits)
        return [levels.scales.copy(), self._copy(levels.floats), packed]

    def unpack(self, buffers: WireBuffers) -> Levels:
        """The inverse of `encode`; CodecError names what is wrong: a count, a size, a scale, a level."""
        scales, floats, packed = self._check(buffers)
        raised = self._pool.take(self._level_count, self._dtype)
        for layer, run, stretch in zip(self._format.ternary, self._runs, self._stretches, strict=True):
            planar.unpack(packed[run], raised[stretch], self.bits)
            self._check_levels(layer, int(raised[stretch].max(initial=0)))
        return Levels(self.workers, scales.copy(), self._copy(floats), raised)

    def _check(self, buffers: WireBuffers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """View a message from the wire: scales, float layers, packed levels."""
        expect(buffers, ["scales", "floats", "levels"])
        scales = wire_array(buffers[0], np.float32, self._format.scale_count, "scales")
        floats = wire_array(buffers[1], np.float32, self._format.float_size, "float layers")
        packed = wire_array(buffers[2], np.uint8, self._level_bytes, "levels")
        self._format.check_scales(scales)
        require_finite(floats, self._format.floats)
        return scales, floats, packed

    def _check_levels(self, layer: Layer, largest: int) -> None:
        if largest > 2 * self.workers:
            raise CodecError(f"layer {layer.name}: a level beyond -{self.workers} .. {self.workers}")

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mean over the workers of what their messages decode to; see `Codec.decode`."""
        scales, floats, packed = self._check(buffers)
        vector, y = room(out, self.layout)
        on = backend.of(y)
        self._format.selection.scatter(self._mean(floats, self.workers), y)
        for position, (layer, run) in enumerate(zip(self._format.ternary, self._runs, strict=True)):
            step = float(self._format.scale_of(scales, position)) / self.workers
            how = self.workers, self.bits, step, self._pool.take
            self._check_levels(layer, on.levels.unpack(packed[run], y[layer.slice], *how))
        return vector

    def mean(self, levels: Levels, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mean vector [layout.size] of a complete sum, into `out` or a fresh vector."""
        self._require_complete(levels)
        vector = output(out, self.layout)
        y = vector.numpy()
        self._format.selection.scatter(self._mean(levels.floats, levels.count), y)
        for position, (layer, stretch) in enumerate(zip(self._format.ternary, self._stretches, strict=True)):
            step = float(self._format.scale_of(levels.scales, position)) / levels.count
            kernels.scale(levels.raised[stretch], y[layer.slice], levels.count, step)
        return vector

    def _require_complete(self, levels: Levels) -> None:
        if levels.count != self.workers:
            raise CodecError(f"a sum over {levels.count} of {self.workers} workers is not complete")
        require_finite(levels.floats, self._format.floats)  # float32 sums of finite values can overflow


def _at_least_one(total: Levels | None) -> Levels:
    if total is None:
        raise CodecError("a sum over no messages")
    return total
