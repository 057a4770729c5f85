"""Bit planes with torch, and what travels in them: the kernels of `level_kernels` and `bit_kernels`; half floats."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs.device.planar import hashed, largest, pack, rows_of, shifted, unpack
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


def signs_pack(x: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack the sign bits of a layer's columns, and find their means; see `bit_kernels.signs_pack`.

    Returns
    -------
    (uint8, a run of ceil(length / 8) bytes a column; float32 [columns, 2], flat)
    """
    packed, means = [x.new_empty(0, dtype=torch.uint8)], [x.new_empty(0)]
    for columns in rows_of(x, length):
        negative = torch.signbit(columns)
        count = negative.sum(1)
        plus = torch.where(negative, 0.0, columns).sum(1, dtype=torch.float64) / (columns.shape[1] - count).clamp(min=1)
        minus = torch.where(negative, columns, 0.0).sum(1, dtype=torch.float64) / count.clamp(min=1)
        means.append(torch.stack([plus, minus], 1).float().view(-1))
        packed.append(pack(negative, PLANES, 1, lambda blocks, first: _joined(blocks)).view(-1))
    return torch.cat(packed), torch.cat(means)


def signs_unpack(packed: torch.Tensor, means: torch.Tensor, size: int, length: int) -> torch.Tensor:
    """The mean of its column and sign for each element: float32 [size]; see `bit_kernels.signs_unpack`."""
    width, values = -(-length // PLANES), [means.new_empty(0)]
    pairs = means.view(-1, 2)
    whole = size // length
    for columns, bytes_, here in (
        (length, packed[: whole * width].view(whole, width), pairs[:whole]),
        (size - whole * length, packed[whole * width :].view(len(pairs) - whole, -1), pairs[whole:]),
    ):
        if columns and len(here):
            signed = unpack(bytes_, columns, PLANES, 1, lambda planes, first: _parted(planes)) > 0
            values.append(torch.where(signed, here[:, 1:], here[:, :1]).reshape(-1))
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


def quantize(x: torch.Tensor, low: float, step: float, random: bool, key: int) -> torch.Tensor:
    """The level of each value, int32 [n]; see `bit_kernels.quantize`."""
    part: float | torch.Tensor = 0.5
    if random:
        part = shifted(hashed(0, x.numel(), int(key), x.device), 1).double() * 2.0**-31
    return ((x.double() - low) * (1 / step if step > 0 else 0.0) + part).to(torch.int32)


def quantize_pack(x: torch.Tensor, bits: int, low: float, step: float, random: bool, key: int) -> torch.Tensor:
    """`quantize`, packed: uint8."""
    levels = quantize(x, low, step, random, key)
    return levels.to(torch.uint8) if bits == PLANES else levels_pack(levels, bits)


def reconstruct(packed: torch.Tensor, size: int, bits: int, low: float, step: float) -> torch.Tensor:
    """low + level * step, made in float64, for each packed level: float32 [size]."""
    levels = packed if bits == PLANES else levels_unpack(packed, size, bits)
    return (levels.double() * step + low).float()


# --- half precision -----------------------------------------------------------------------------------------------


def halves_pack(x: torch.Tensor, factor: float, limit: float) -> torch.Tensor:
    """The half-precision floats nearest to x * factor, ties to even, cut to +-limit: float16 [n]."""
    return (x * float(factor)).clamp(-float(limit), float(limit)).half()


def halves_unpack(halves: torch.Tensor, factor: float) -> tuple[torch.Tensor, float]:
    """The float32 of each half (float16 [n]) times `factor`, and the largest magnitude among them."""
    values = halves.float() * float(factor)
    return values, float(largest(values).item())
