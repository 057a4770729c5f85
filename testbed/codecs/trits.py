"""The message format that every ternary codec shares.

Three buffers, in this order; numbers are little-endian:

1. scales: one float32 per ternary layer (or a single one for the model);
2. floats: the float32 values of the layers that are not quantized, one after the other;
3. trits: for each ternary layer a run of ceil(size / 5) bytes. A byte holds five base-3 digits (0: zero,
   1: +scale, 2: -scale), the lowest first. A run is cut into blocks of 1,024 bytes = 5 segments of 1,024 elements;
   the rest of r elements is a last block of q = ceil(r / 5) bytes = 5 segments of q. Digit i of byte j of a block is
   element j of segment i; digits past the layer's end are 0.

CifarNet (1,068,298 parameters, 8 ternary tensors, the last layer float): 32 + 7,720 + 213,276 = 221,028 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    Elements,
    VectorCodec,
    WireBuffers,
    expect,
    require_finite,
    room,
    stretches,
    wire_array,
)
from testbed.codecs.kernels.ternary import MAX_TRIT_BYTE, TRITS
from testbed.codecs.selection import Selection
from testbed.errors import CodecError
from testbed.layout import Layer, Layout


class Parts(NamedTuple):
    """A ternary message's buffers, typed and checked."""

    scales: np.ndarray  # float32 [scale_count]
    floats: np.ndarray  # float32 [float_size]
    trits: np.ndarray  # uint8 [sum of the runs]


class TritFormat(VectorCodec):
    """Which layers are ternary, where each lies in a message, and how a message becomes a vector.

    Parameters
    ----------
    layout : the model
    is_float : says of a layer whether it stays in float32
    one_scale : a single scale for all ternary layers instead of one for each
    """

    def __init__(self, layout: Layout, is_float: Callable[[Layer], bool], one_scale: bool = False) -> None:
        super().__init__(layout)
        self.selection = Selection(layout, lambda layer: not is_float(layer))
        self.ternary, self.floats, self.indexes = self.selection.coded, self.selection.floats, self.selection.indexes
        self.one_scale = one_scale
        self.scale_count = min(1, len(self.ternary)) if one_scale else len(self.ternary)
        self.float_size = sum(layer.size for layer in self.floats)
        lengths = [-(-layer.size // TRITS) for layer in self.ternary]
        self.runs = stretches(lengths)
        self.trit_bytes = sum(lengths)
        self.nbytes = 4 * self.scale_count + 4 * self.float_size + self.trit_bytes

    def sizes(self) -> Sequence[int]:
        return [4 * self.scale_count, 4 * self.float_size, self.trit_bytes]

    def scale_of(self, scales: np.ndarray, position: int) -> np.float32:
        """The scale of the ternary layer at this position among the ternary layers."""
        return scales[0 if self.one_scale else position]

    def scale_name(self, index: int) -> str:
        """Whose scale this is, for an error."""
        return "all layers" if self.one_scale else f"layer {self.ternary[index].name}"

    def check(self, buffers: WireBuffers) -> Parts:
        """View a message from the wire; CodecError names what is wrong: a count, a size, a scale, a digit."""
        expect(buffers, ["scales", "floats", "trits"])
        parts = Parts(
            wire_array(buffers[0], np.float32, self.scale_count, "scales"),
            wire_array(buffers[1], np.float32, self.float_size, "float layers"),
            wire_array(buffers[2], np.uint8, self.trit_bytes, "trits"),
        )
        self.check_scales(parts.scales)
        require_finite(parts.floats, self.floats)
        if parts.trits.size and parts.trits.max() > MAX_TRIT_BYTE:
            for layer, run in zip(self.ternary, self.runs, strict=True):
                if layer.size and parts.trits[run].max() > MAX_TRIT_BYTE:
                    raise CodecError(f"layer {layer.name}: a byte above 242 is not five base-3 digits")
        return parts

    def check_scales(self, scales: np.ndarray) -> None:
        """Raise CodecError naming the first layer whose scale is not finite and at least zero."""
        bad = ~(np.isfinite(scales) & (scales >= 0))
        if bad.any():
            position = int(bad.argmax())
            raise CodecError(f"{self.scale_name(position)}: a scale is finite and at least 0, found {scales[position]}")

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write 0, +scale or -scale for each digit, the float layers as they came; see `Codec.decode`."""
        parts = self.check(buffers)
        vector, y = room(out, self.layout)
        on = backend.of(y)
        self.selection.scatter(parts.floats, y)
        for position, (layer, run) in enumerate(zip(self.ternary, self.runs, strict=True)):
            on.ternary.unpack(parts.trits[run], y[layer.slice], self.scale_of(parts.scales, position))
        return vector

    def buffers(self, scales: np.ndarray, x: Elements) -> Buffers:
        """The buffers of a new message of vector x: scales and floats filled in, trits to be written.

        CodecError names the float layer that holds NaN or infinity.
        """
        return [scales, self.selection.gather(x), self._pool.take(self.trit_bytes)]
