"""Ternary vectors in one pass over memory: Triton kernels for `testbed.codecs.resident.ternary`.

As torch's operations, each of which reads and writes all of memory, ternary's encoding moves 230 bytes an element where a
copy moves 8, and has 0.03 of a copy's speed on an H100. Here a vector is read once for what its layers are scaled with
and once to be packed. What is computed is the same, to the bit but for the order of sums; tests run the kernels on the
CPU, by Triton's interpreter.

1. A tile is what one program works on. Where its elements and bytes lie stands in a table of one row a tile, so that
   one launch is for all layers.
2. Sums are brought together in an order that does not depend on which program is done first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from testbed.codecs.kernels.planar import R1, R2, R3, SEGMENT
from testbed.codecs.kernels.ternary import DRAW_RANGE, TRITS
from testbed.codecs.ternary import _ENLARGE, _TINY_SCALE
from testbed.gpu.moves import upload
from testbed.layout import Layer

MEASURED = 4096  # elements of a tile that is measured
GATHERED = 1024  # tiles that are brought together at once
NO_FUSION = {"enable_fp_fusion": False}  # a product and a sum are rounded each, as torch's operations do

_SEGMENT, _TRITS = tl.constexpr(SEGMENT), tl.constexpr(TRITS)
_R1, _R2, _R3 = (tl.constexpr(int(factor)) for factor in (R1, R2, R3))
_TINY, _LARGER, _RANGE = tl.constexpr(_TINY_SCALE), tl.constexpr(_ENLARGE), tl.constexpr(DRAW_RANGE)
_ABS = tl.constexpr(0x7FFFFFFF)


class Fused:
    """Measures, packs and unpacks the ternary layers of a layout.

    Parameters
    ----------
    layers : those that are ternary
    one_scale : whether they have one scale together
    """

    def __init__(self, layers: Sequence[Layer], one_scale: bool, device: torch.device) -> None:
        self._layers, self._one_scale, self._device = len(layers), one_scale, device
        self._measured = upload(_measured_tiles(layers), device)
        counts = [-(-layer.size // MEASURED) for layer in layers]
        firsts = np.cumsum([0, *counts])[:-1]
        rows = zip(firsts.tolist(), counts, (layer.size for layer in layers), strict=True)
        self._rounds = -(-max(counts, default=0) // GATHERED)
        self._of_layer = upload(np.array(list(rows), np.int64).reshape(-1, 3), device)
        self._packed = upload(_packed_tiles(layers), device)
        self._bytes = sum(-(-layer.size // TRITS) for layer in layers)

    def measure(self, x: Tensor, deviations: float | None) -> tuple[Tensor, Tensor, Tensor]:
        """Each layer's largest magnitude, what its elements are cut to (`deviations`; None: nothing), and the scales."""
        tiles = len(self._measured)
        tops = torch.empty(tiles, device=self._device)
        sums = torch.empty((2, tiles), dtype=torch.float64, device=self._device)
        found = torch.empty((2, self._layers), device=self._device)
        if tiles:
            _measure[(tiles,)](x, self._measured, tops, sums, tiles, MEASURED, num_warps=4)
        if self._layers:
            _finish[(self._layers,)](
                tops,
                sums,
                tiles,
                self._of_layer,
                found,
                self._layers,
                deviations,
                self._rounds,
                GATHERED,
                **NO_FUSION,
            )
        top, clip = found.unbind()
        return top, clip, clip.amax().view(1) if self._one_scale and self._layers else clip

    def pack(self, x: Tensor, keys: Tensor, clip: Tensor, scales: Tensor) -> Tensor:
        """Draw and pack all digits: uint8 [bytes]."""
        trits = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
        if tiles := len(self._packed):
            _pack[(tiles,)](x, self._packed, keys, clip, scales, trits, self._one_scale, num_warps=8, **NO_FUSION)
        return trits

    def unpack(self, trits: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write what digits stand for to their layers' places."""
        if tiles := len(self._packed):
            _unpack[(tiles,)](trits, self._packed, scales, out, self._one_scale, num_warps=8)


def place(values: Tensor, places: Tensor, out: Tensor) -> None:
    """Write values to places, of which no two are the same."""
    if count := len(values):
        _place[(-(-count // 1024),)](values, places, out, count, 1024)


def _measured_tiles(layers: Sequence[Layer]) -> np.ndarray:
    """First element and end of each tile, int64 [tiles, 2]."""
    parts = [np.empty((0, 2), np.int64)]
    for layer in layers:
        starts = np.arange(layer.offset, layer.end, MEASURED, dtype=np.int64)
        parts.append(np.stack([starts, np.minimum(starts + MEASURED, layer.end)], 1))
    return np.concatenate(parts)


def _packed_tiles(layers: Sequence[Layer]) -> np.ndarray:
    """A row for each planar block (`testbed.codecs.trits`), int64 [tiles, 6].

    Its layer; its first element; the bytes of it, which is how far its segments are from each other; the layer's end;
    its first byte in the message; and in the layer's run.
    """
    parts, begun = [np.empty((0, 6), np.int64)], 0
    for number, layer in enumerate(layers):
        full = np.arange(layer.size // (TRITS * SEGMENT), dtype=np.int64)
        firsts, widths = full * SEGMENT, np.full(len(full), SEGMENT, np.int64)
        if rest := layer.size - len(full) * TRITS * SEGMENT:
            firsts = np.append(firsts, len(full) * SEGMENT)
            widths = np.append(widths, -(-rest // TRITS))
        same = np.ones_like(firsts)
        rows = (number * same, layer.offset + TRITS * firsts, widths, layer.end * same, begun + firsts, firsts)
        parts.append(np.stack(rows, 1))
        begun += -(-layer.size // TRITS)
    return np.concatenate(parts)


# --- kernels ------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["tiles"])
def _measure(x, table, tops, sums, tiles, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    tile = tl.program_id(0)
    start, end = tl.load(table + tile * 2), tl.load(table + tile * 2 + 1)
    place = start + tl.arange(0, WIDTH)
    value = tl.load(x + place, mask=place < end, other=0.0)
    bits = value.to(tl.int32, bitcast=True) & _ABS  # ordered as magnitudes are, NaN above all
    tl.store(tops + tile, tl.max(bits, 0).to(tl.float32, bitcast=True))
    wide = value.to(tl.float64)
    tl.store(sums + tile, tl.sum(wide, 0))
    tl.store(sums + tiles + tile, tl.sum(wide * wide, 0))


@triton.jit(do_not_specialize=["tiles", "layers"])
def _finish(
    tops,
    sums,
    tiles,
    table,
    found,
    layers,
    DEVIATIONS: tl.constexpr,
    ROUNDS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # type: ignore[no-untyped-def]
    layer = tl.program_id(0)
    first, count, size = tl.load(table + layer * 3), tl.load(table + layer * 3 + 1), tl.load(table + layer * 3 + 2)
    lanes = tl.arange(0, WIDTH)
    largest = tl.zeros([WIDTH], tl.int32)
    total, squares = tl.zeros([WIDTH], tl.float64), tl.zeros([WIDTH], tl.float64)
    for turn in range(ROUNDS):
        inside = turn * WIDTH + lanes < count
        tile = first + turn * WIDTH + lanes
        bits = tl.load(tops + tile, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        largest = tl.maximum(largest, bits)
        total += tl.load(sums + tile, mask=inside, other=0.0)
        squares += tl.load(sums + tiles + tile, mask=inside, other=0.0)
    top = tl.max(largest, 0).to(tl.float32, bitcast=True)
    clip = top
    if DEVIATIONS is not None:
        n = size.to(tl.float64)
        mean, mean_square = tl.sum(total, 0) / n, tl.sum(squares, 0) / n
        variance = mean_square - mean * mean
        limit = tl.full((), DEVIATIONS, tl.float64) * tl.sqrt(tl.where(variance > 0, variance, 0.0))
        wide = top.to(tl.float64)
        cut = tl.where(limit < wide, limit, wide).to(tl.float32)
        clip = tl.where(variance > tl.full((), 1e-12, tl.float64) * mean_square, cut, top)
    tl.store(found + layer, top)
    tl.store(found + layers + layer, clip)


@triton.jit
def _pack(x, table, keys, clips, scales, trits, ONE_SCALE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = table + tl.program_id(0) * 6
    layer, start, width, end = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    begun, number = tl.load(row + 4), tl.load(row + 5)
    lane = tl.arange(0, _SEGMENT)
    inside = lane < width

    scale = tl.load(scales) if ONE_SCALE else tl.load(scales + layer)
    enlarge = tl.where(scale < _TINY, _LARGER, 1.0).to(tl.float32)
    clip, scale = tl.load(clips + layer) * enlarge, scale * enlarge
    inverse = tl.where(scale > 0, (tl.full((), _RANGE, tl.float64) / scale.to(tl.float64)).to(tl.float32), 0.0)
    limit = tl.where(clip < scale, clip * inverse, float("inf"))

    h = (number + lane).to(tl.uint32)
    h = ((h ^ (h >> 17)) * _R1) ^ tl.load(keys + layer).to(tl.uint32, bitcast=True)
    h = (h ^ (h >> 11)) * _R2
    h = (h ^ (h >> 15)) * _R3
    h = h ^ (h >> 14)

    byte = tl.zeros([_SEGMENT], tl.int32)
    power = 1
    for digit in tl.static_range(_TRITS):
        if digit == 2:
            h = h * _R1
            h = h ^ (h >> 16)
        if digit == 4:
            h = h * _R2
            h = h ^ (h >> 16)
        drawn = (h << 16) | (h >> 16) if digit % 2 else h
        place = start + digit * width + lane
        value = tl.load(x + place, mask=inside & (place < end), other=0.0)
        level = (tl.abs(value) * enlarge) * inverse
        level = tl.where(level > limit, limit, level)  # NaN stays, and is never drawn
        chosen = (drawn >> 1).to(tl.int32).to(tl.float32) < level
        byte += tl.where(chosen, tl.where(value < 0, 2, 1), 0) * power
        power = power * 3
    tl.store(trits + begun + lane, byte.to(tl.uint8), mask=inside)


@triton.jit
def _unpack(trits, table, scales, out, ONE_SCALE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = table + tl.program_id(0) * 6
    layer, start, width, end = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    lane = tl.arange(0, _SEGMENT)
    inside = lane < width
    scale = tl.load(scales) if ONE_SCALE else tl.load(scales + layer)
    byte = tl.load(trits + tl.load(row + 4) + lane, mask=inside, other=0).to(tl.int32)
    for digit in tl.static_range(_TRITS):
        trit = byte % 3
        byte = byte // 3
        value = tl.where(trit == 0, 0.0, tl.where(trit == 1, scale, -scale))
        place = start + digit * width + lane
        tl.store(out + place, value, mask=inside & (place < end))


@triton.jit(do_not_specialize=["count"])
def _place(values, places, out, count, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = lane < count
    place = tl.load(places + lane, mask=inside, other=0)
    tl.store(out + place, tl.load(values + lane, mask=inside), mask=inside)
