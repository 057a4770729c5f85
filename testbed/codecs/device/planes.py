"""Bit planes with torch, and what travels in them: the kernels of `level_kernels` and `bit_kernels`; half floats."""

from __future__ import annotations

from typing import SupportsFloat, SupportsInt

import numpy as np
import torch

from testbed.codecs.device.planar import hashed, pack, rows_of, shifted, unpack
from testbed.codecs.level_kernels import PLANES

# --- levels -----------------------------------------------------------------------------------------------------


def levels_pack(levels: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the low bits of integers [n]; see `level_kernels.levels_pack`. Returns uint8 [bits * ceil(n / 8)]."""

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return torch.cat([_joined((blocks >> bit) & 1) for bit in range(bits)], 2)

    return pack(levels.view(1, -1), PLANES, bits, code).view(-1)


def levels_unpack(packed: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    """The inverse of `levels_pack`: int32 [size]."""

    def code(planes: torch.Tensor, first: int) -> torch.Tensor:
        rows, count, _, width = planes.shape
        levels = planes.new_zeros((rows, count, PLANES, width), dtype=torch.int32)
        for bit in range(bits):
            levels |= _parted(planes[:, :, bit : bit + 1]).to(torch.int32) << bit
        return levels

    return unpack(packed.view(1, -1), size, PLANES, bits, code).view(-1)


def levels_scale(levels: torch.Tensor, count: int, step: float) -> torch.Tensor:
    """(level - count) * step, the product in float64: float32 [n]."""
    return ((levels - count).double() * step).float()


def _joined(flags: torch.Tensor) -> torch.Tensor:
    """Zeros and ones [rows, count, 8, width] as bytes [rows, count, 1, width], the first in the lowest bit."""
    return (flags.to(torch.uint8) << _places(flags)).sum(2, keepdim=True, dtype=torch.uint8)


def _parted(bytes_: torch.Tensor) -> torch.Tensor:
    """The inverse of `_joined`."""
    return (bytes_ >> _places(bytes_)) & 1


def _places(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(PLANES, dtype=torch.uint8, device=like.device).view(PLANES, 1)


# --- one bit ------------------------------------------------------------------------------------------------------


def signs_pack(x: torch.Tensor, rest: torch.Tensor | None, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack the sign bits of a layer's columns, and find their means; see `bit_kernels.signs_pack`.

    Where there is a rest, x + rest is packed, and the rest becomes what the means leave of it.

    Returns
    -------
    (uint8, a run of ceil(length / 8) bytes a column; float32 [columns, 2], flat)
    """
    if rest is not None:
        rest += x
        x = rest
    packed, means = [x.new_empty(0, dtype=torch.uint8)], [x.new_empty(0)]
    for columns in rows_of(x, length):
        negative = torch.signbit(columns)
        count = negative.sum(1)
        plus = torch.where(negative, 0.0, columns).sum(1, dtype=torch.float64) / (columns.shape[1] - count).clamp(min=1)
        minus = torch.where(negative, columns, 0.0).sum(1, dtype=torch.float64) / count.clamp(min=1)
        means.append(torch.stack([plus, minus], 1).float().view(-1))
        packed.append(pack(negative, PLANES, 1, lambda blocks, first: _joined(blocks)).view(-1))
    signs, pairs = torch.cat(packed), torch.cat(means)
    if rest is not None:
        rest -= signs_unpack(signs, pairs, len(rest), length)
    return signs, pairs


def signs_unpack(packed: torch.Tensor, means: torch.Tensor, size: int, length: int) -> torch.Tensor:
    """The mean of its column and sign for each element: float32 [size]; see `bit_kernels.signs_unpack`."""
    pairs, values = means.view(-1, 2), [means.new_empty(0)]
    for count, wide in ((size // length, length), (1, size % length)):  # columns, and the shorter last
        if count and wide:
            used = count * -(-wide // PLANES)
            negative = unpack(packed[:used].view(count, -1), wide, PLANES, 1, lambda planes, first: _parted(planes)) > 0
            values.append(torch.where(negative, pairs[:count, 1:], pairs[:count, :1]).view(-1))
            packed, pairs = packed[used:], pairs[count:]
    return torch.cat(values)


# --- k bits -------------------------------------------------------------------------------------------------------


def extremes(x: torch.Tensor) -> tuple[np.float32, np.float32]:
    """(smallest, largest) of at least one value; NaN or infinite where one of them is, and -0 is below 0."""
    low, high = torch.aminmax(_flipped(x.view(torch.int32)))
    ends = _flipped(torch.stack([low, high])).view(torch.float32).cpu().numpy()
    return ends[0], ends[1]


def _flipped(bits: torch.Tensor) -> torch.Tensor:
    """The int32 that compare as the floats of these bits do; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def quantize(x: torch.Tensor, low: float, step: float, random: bool, key: SupportsInt) -> torch.Tensor:
    """The level of each value, int32 [n]; see `bit_kernels.quantize`."""
    part: float | torch.Tensor = 0.5
    if random:
        part = shifted(hashed(0, x.numel(), int(key), x.device), 1).double() * 2.0**-31
    return ((x.double() - low) * (1 / step if step > 0 else 0.0) + part).to(torch.int32)


def quantize_pack(
    x: torch.Tensor, rest: torch.Tensor | None, low: float, step: float, bits: int, random: bool, key: SupportsInt
) -> torch.Tensor:
    """`quantize`, packed: uint8. Where there is a rest, x + rest is, and the rest becomes what the levels leave."""
    if rest is not None:
        rest += x
        x = rest
    levels = quantize(x, low, step, random, key)
    if rest is not None:
        rest -= _values(levels, low, step)
    return levels.to(torch.uint8) if bits == PLANES else levels_pack(levels, bits)


def reconstruct(packed: torch.Tensor, size: int, low: float, step: float, bits: int) -> torch.Tensor:
    """low + level * step, made in float64, for each packed level: float32 [size]."""
    return _values(packed if bits == PLANES else levels_unpack(packed, size, bits), low, step)


def _values(levels: torch.Tensor, low: float, step: float) -> torch.Tensor:
    return (levels.double() * step + low).float()


# --- half precision -----------------------------------------------------------------------------------------------


def halves_pack(x: torch.Tensor, factor: SupportsFloat, limit: SupportsFloat) -> torch.Tensor:
    """The bits (uint16 [n]) of the half-precision floats nearest to x * factor, ties to even, cut to +-limit."""
    return (x * float(factor)).clamp(-float(limit), float(limit)).half().view(torch.uint16)


def halves_unpack(halves: torch.Tensor, factor: SupportsFloat) -> torch.Tensor:
    """The float32 of each half's bits (uint16 [n]) times `factor`."""
    return halves.view(torch.float16).float() * float(factor)
