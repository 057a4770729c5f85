"""Ternary messages in Triton: a vector is read twice to be coded, once to be measured and once to be packed.

The rules are those of `testbed.codecs.kernels.ternary`, the numbers to the bit. torch's operations
(`testbed.codecs.resident.ternary`) read and write memory once each, which a GPU spends nearly all of its time on.

1. `measure`: a program for every few thousand elements of a layer notes their largest magnitude, sum and sum of
   squares;
2. `finish`: a program for each layer brings these together, always in the same order, and clips;
3. `pack`: a program for each planar block makes its bytes, or copies as many elements of a float layer;
4. `unpack`: the inverse, in one.

What a program works on is a row of a table, made once for a layout (`testbed.codecs.resident.fused`). Offsets in it
are of any alignment, so that lanes next to each other load 4 bytes each, which are next to each other, too. Vectors are
coded and decoded several at once, the second dimension of a grid: rows of the arrays that hold what belongs to each.

No kernel is specialized for its arguments' values: each is compiled once for a codec, whatever the sizes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from testbed.codecs.base import INCREMENT, MIX
from testbed.codecs.kernels import planar, ternary
from testbed.codecs.ternary import _ENLARGE, _TINY_SCALE

R1, R2, R3 = (tl.constexpr(int(factor)) for factor in (planar.R1, planar.R2, planar.R3))
ADDED, MIX_1, MIX_2 = tl.constexpr(INCREMENT), tl.constexpr(MIX[0]), tl.constexpr(MIX[1])
TRITS = tl.constexpr(ternary.TRITS)
DRAW_RANGE = tl.constexpr(ternary.DRAW_RANGE)
TINY_SCALE, ENLARGE = tl.constexpr(_TINY_SCALE), tl.constexpr(_ENLARGE)
INFINITY = tl.constexpr(float("inf"))
MAGNITUDE = tl.constexpr(0x7FFFFFFF)  # the bits of a float32 without its sign: in the order of sizes, NaN the largest
THIRD = tl.constexpr(171)  # b * 171 >> 9 is b // 3 for b < 512

MEASURED = tl.constexpr(2)  # columns of a table of stretches to be measured: first element, elements
PARTS = tl.constexpr(3)  # float64 of a stretch: bits of the largest magnitude, sum, sum of squares
LAYER = tl.constexpr(3)  # columns of the table of layers: first stretch, stretches, elements
BLOCK = tl.constexpr(6)  # columns of the table of blocks; see `_block`


# --- scales ---------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["x", "length", "stretches", "parts"])
def measure(x: tl.tensor, length: tl.tensor, stretches: tl.tensor, parts: tl.tensor, lanes: tl.constexpr) -> None:
    """Note of each stretch of at most `lanes` elements what its layer's scale is made of.

    Parameters
    ----------
    x : float32 [vectors, length]
    parts : float64 [vectors, stretches, 3]
    """
    row, vector = tl.program_id(0), tl.program_id(1).to(tl.int64)
    x += vector * length
    start, size = tl.load(stretches + MEASURED * row), tl.load(stretches + MEASURED * row + 1)
    lane = tl.arange(0, lanes)
    if size == lanes:  # noqa: SIM108 (a branch: nearly all are whole, and ask nowhere what is there)
        values = tl.load(x + start + lane)
    else:
        values = tl.load(x + start + lane, mask=lane < size, other=0.0)
    bits = values.to(tl.int32, bitcast=True) & MAGNITUDE
    wide = values.to(tl.float64)
    parts += PARTS * (vector * tl.num_programs(0) + row)
    tl.store(parts, tl.max(bits, 0).to(tl.float64))
    tl.store(parts + 1, tl.sum(wide, 0))
    tl.store(parts + 2, tl.sum(wide * wide, 0))


@triton.jit(do_not_specialize=["parts", "stretches_in_all", "layers", "made"])
def finish(
    parts: tl.tensor,
    stretches_in_all: tl.tensor,
    layers: tl.tensor,
    made: tl.tensor,
    clip: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """Write the largest magnitude of each layer, that after clipping, and this once more as the message's scale.

    Parameters
    ----------
    parts : float64 [vectors, stretches in all, 3]
    made : float32 [3, vectors, layers]
    clip : in standard deviations; None: no clipping
    """
    layer, vector = tl.program_id(0), tl.program_id(1).to(tl.int64)
    count = tl.num_programs(0) * tl.num_programs(1)
    parts += PARTS * vector * stretches_in_all
    made += vector * tl.num_programs(0) + layer
    layers += LAYER * layer
    first, stretches, size = tl.load(layers), tl.load(layers + 1).to(tl.int32), tl.load(layers + 2)
    tops, sums, squares = (tl.zeros([lanes], tl.float64), tl.zeros([lanes], tl.float64), tl.zeros([lanes], tl.float64))
    begun = 0
    while begun < stretches:
        lane = begun + tl.arange(0, lanes)
        part, there = parts + PARTS * (first + lane), lane < stretches
        tops = tl.maximum(tops, tl.load(part, mask=there, other=0.0))
        sums += tl.load(part + 1, mask=there, other=0.0)
        squares += tl.load(part + 2, mask=there, other=0.0)
        begun += lanes
    top = tl.max(tops, 0).to(tl.int32).to(tl.float32, bitcast=True)
    scale = top
    if clip is not None:
        mean, mean_square = tl.sum(sums, 0) / size.to(tl.float64), tl.sum(squares, 0) / size.to(tl.float64)
        variance = mean_square - mean * mean
        limit = tl.minimum(tl.sqrt(tl.maximum(variance, 0.0)) * clip, top.to(tl.float64)).to(tl.float32)
        scale = tl.where(variance > mean_square * 1e-12, limit, top)
    tl.store(made, top)
    tl.store(made + count, scale)
    tl.store(made + 2 * count, scale)


@triton.jit
def _rules(clip: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """What a layer is multiplied by, twice, and cut to; see `TernaryResident._rules`."""
    enlarge = tl.where(scale < TINY_SCALE, ENLARGE, 1.0)
    scale, clip = scale * enlarge, clip * enlarge
    inverse = (tl.full([], DRAW_RANGE, tl.float64) / scale.to(tl.float64)).to(tl.float32)
    inverse = tl.where(scale > 0, inverse, 0.0)
    return enlarge, inverse, tl.where(clip < scale, clip * inverse, INFINITY)


# --- random numbers -------------------------------------------------------------------------------------------------


@triton.jit
def _mixed(z: tl.tensor) -> tl.tensor:
    z = (z ^ (z >> 30)) * MIX_1
    z = (z ^ (z >> 27)) * MIX_2
    return z ^ (z >> 31)


@triton.jit
def _key(high: tl.tensor, low: tl.tensor, index: tl.tensor) -> tl.tensor:
    """The key of a layer, `Key.layer`, of the two halves (int32) of `Key.state`."""
    state = high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    state = state | low.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (_mixed((state + ADDED) ^ index.to(tl.uint64)) >> 32).to(tl.uint32)


@triton.jit
def _hashed(counter: tl.tensor, key: tl.tensor) -> tl.tensor:
    h = counter ^ (counter >> 17)
    h = (h * R1) ^ key
    h = (h ^ (h >> 11)) * R2
    h = (h ^ (h >> 15)) * R3
    return h ^ (h >> 14)


@triton.jit
def _rehashed(h: tl.tensor, factor: tl.constexpr) -> tl.tensor:
    h = h * factor
    return h ^ (h >> 16)


@triton.jit
def _swapped(h: tl.tensor) -> tl.tensor:
    return (h << 16) | (h >> 16)


# --- messages -------------------------------------------------------------------------------------------------------


@triton.jit
def _block(blocks: tl.tensor) -> tl.tensor:
    """A program's row: its layer, -1 for a float layer; first element; elements; where its part of a message begins.

    And its first byte's number in the layer's run, which draws are counted by, and the layer's number in its key.
    """
    blocks += BLOCK * tl.program_id(0)
    layer, start, size = tl.load(blocks).to(tl.int32), tl.load(blocks + 1), tl.load(blocks + 2).to(tl.int32)
    return layer, start, size, tl.load(blocks + 3), tl.load(blocks + 4), tl.load(blocks + 5)


@triton.jit
def _segments(x: tl.tensor, size: tl.tensor, lanes: tl.constexpr) -> tl.tensor:
    """The five segments of a block, with zeros past its end; nearly all are whole, and ask nowhere what is there."""
    lane, width = tl.arange(0, lanes), (size + TRITS - 1) // TRITS
    if size == TRITS * lanes:
        x0, x1, x2 = tl.load(x + lane), tl.load(x + lanes + lane), tl.load(x + 2 * lanes + lane)
        x3, x4 = tl.load(x + 3 * lanes + lane), tl.load(x + 4 * lanes + lane)
    else:
        x0 = tl.load(x + lane, mask=_there(lane, 0, width, size), other=0.0)
        x1 = tl.load(x + width + lane, mask=_there(lane, 1, width, size), other=0.0)
        x2 = tl.load(x + 2 * width + lane, mask=_there(lane, 2, width, size), other=0.0)
        x3 = tl.load(x + 3 * width + lane, mask=_there(lane, 3, width, size), other=0.0)
        x4 = tl.load(x + 4 * width + lane, mask=_there(lane, 4, width, size), other=0.0)
    return x0, x1, x2, x3, x4


@triton.jit
def _there(lane: tl.tensor, segment: tl.constexpr, width: tl.tensor, size: tl.tensor) -> tl.tensor:
    return (lane < width) & (segment * width + lane < size)


@triton.jit
def _write(
    y: tl.tensor,
    y0: tl.tensor,
    y1: tl.tensor,
    y2: tl.tensor,
    y3: tl.tensor,
    y4: tl.tensor,
    size: tl.tensor,
    lanes: tl.constexpr,
) -> None:
    """The inverse of `_segments`."""
    lane, width = tl.arange(0, lanes), (size + TRITS - 1) // TRITS
    if size == TRITS * lanes:
        tl.store(y + lane, y0)
        tl.store(y + lanes + lane, y1)
        tl.store(y + 2 * lanes + lane, y2)
        tl.store(y + 3 * lanes + lane, y3)
        tl.store(y + 4 * lanes + lane, y4)
    else:
        tl.store(y + lane, y0, mask=_there(lane, 0, width, size))
        tl.store(y + width + lane, y1, mask=_there(lane, 1, width, size))
        tl.store(y + 2 * width + lane, y2, mask=_there(lane, 2, width, size))
        tl.store(y + 3 * width + lane, y3, mask=_there(lane, 3, width, size))
        tl.store(y + 4 * width + lane, y4, mask=_there(lane, 4, width, size))


@triton.jit
def _trit(
    value: tl.tensor, h: tl.tensor, enlarge: tl.tensor, inverse: tl.tensor, limit: tl.tensor, weight: tl.constexpr
) -> tl.tensor:
    """`weight` (value > 0), 2*`weight` (value < 0) or 0, by 31 random bits of h."""
    level = tl.abs(value) * enlarge * inverse
    level = tl.minimum(level, limit, propagate_nan=tl.PropagateNan.ALL)
    digit = 1 + (value.to(tl.uint32, bitcast=True) >> 31)  # of its sign alone: neither -0 nor NaN is ever drawn
    return tl.where((h >> 1).to(tl.float32) < level, digit * weight, 0)


@triton.jit(do_not_specialize=["x", "blocks", "clips", "scales", "keys", "floats", "trits", "sizes"])
def pack(
    x: tl.tensor,
    blocks: tl.tensor,
    clips: tl.tensor,
    scales: tl.tensor,
    keys: tl.tensor,
    floats: tl.tensor,
    trits: tl.tensor,
    sizes: tl.tensor,
    one_scale: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """Ternarize and pack each block, or copy it where its layer stays in float32.

    Parameters
    ----------
    x, clips, scales, floats, trits : a row a vector
    keys : int32 [vectors, 2], the halves of `Key.state`
    sizes : int64 [5], the lengths of these rows; of scales 0 where all vectors have the same
    """
    vector = tl.program_id(1).to(tl.int64)
    x += vector * tl.load(sizes)
    clips += vector * tl.load(sizes + 1)
    scales += vector * tl.load(sizes + 2)
    floats += vector * tl.load(sizes + 3)
    trits += vector * tl.load(sizes + 4)
    high, low = tl.load(keys + 2 * vector), tl.load(keys + 2 * vector + 1)
    layer, start, size, place, number, index = _block(blocks)
    x0, x1, x2, x3, x4 = _segments(x + start, size, lanes)
    if layer < 0:
        _write(floats + place, x0, x1, x2, x3, x4, size, lanes)
    else:
        enlarge, inverse, limit = _rules(tl.load(clips + layer), tl.load(scales + (0 if one_scale else layer)))
        lane = tl.arange(0, lanes)
        h = _hashed((number + lane).to(tl.uint32), _key(high, low, index))
        packed = _trit(x0, h, enlarge, inverse, limit, 1) + _trit(x1, _swapped(h), enlarge, inverse, limit, 3)
        h = _rehashed(h, R1)
        packed += _trit(x2, h, enlarge, inverse, limit, 9) + _trit(x3, _swapped(h), enlarge, inverse, limit, 27)
        packed += _trit(x4, _rehashed(h, R2), enlarge, inverse, limit, 81)
        tl.store(trits + place + lane, packed.to(tl.uint8), mask=lane < (size + TRITS - 1) // TRITS)


@triton.jit(do_not_specialize=["scales", "floats", "trits", "blocks", "y", "sizes"])
def unpack(
    scales: tl.tensor,
    floats: tl.tensor,
    trits: tl.tensor,
    blocks: tl.tensor,
    y: tl.tensor,
    sizes: tl.tensor,
    one_scale: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """Write 0, scale or -scale for each digit of each block, or copy it where its layer stayed in float32.

    Parameters
    ----------
    scales, floats, trits, y : a row a message
    sizes : int64 [4], the lengths of the rows of y, scales, floats and trits
    """
    message = tl.program_id(1).to(tl.int64)
    y += message * tl.load(sizes)
    scales += message * tl.load(sizes + 1)
    floats += message * tl.load(sizes + 2)
    trits += message * tl.load(sizes + 3)
    layer, start, size, place, _, _ = _block(blocks)
    if layer < 0:
        y0, y1, y2, y3, y4 = _segments(floats + place, size, lanes)
    else:
        lane = tl.arange(0, lanes)
        b0 = tl.load(trits + place + lane, mask=lane < (size + TRITS - 1) // TRITS, other=0).to(tl.int32)
        b1 = (b0 * THIRD) >> 9
        b2 = (b1 * THIRD) >> 9
        b3 = (b2 * THIRD) >> 9
        b4 = (b3 * THIRD) >> 9
        scale = tl.load(scales + (0 if one_scale else layer))
        y0, y1, y2 = _value(b0 - 3 * b1, scale), _value(b1 - 3 * b2, scale), _value(b2 - 3 * b3, scale)
        y3, y4 = _value(b3 - 3 * b4, scale), _value(b4, scale)
    _write(y + start, y0, y1, y2, y3, y4, size, lanes)


@triton.jit
def _value(digit: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return ((digit & 1) - (digit >> 1)).to(tl.float32) * scale
