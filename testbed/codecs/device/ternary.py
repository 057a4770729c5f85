"""Ternary vectors: `testbed.codecs.kernels.ternary` with torch."""

from __future__ import annotations

from typing import SupportsFloat, SupportsInt

import numpy as np
import torch

from testbed.codecs.device import planar
from testbed.codecs.device.planar import shifted, streams
from testbed.codecs.device.vectors import bits_of, host, largest, moved, numbers
from testbed.codecs.kernels.planar import SEGMENT
from testbed.codecs.kernels.ternary import TRITS

# --- statistics of a layer ------------------------------------------------------------------------------------------


def magnitude(x: torch.Tensor) -> tuple[float, int]:
    """(sum of |x|, bits of the largest magnitude)."""
    total, top = numbers(x.abs().sum(dtype=torch.float64), largest(x))
    return total, bits_of(top)


def kept(x: torch.Tensor, threshold: SupportsFloat) -> tuple[int, float]:
    """(how many, sum of |x|) over the elements with |x| > threshold."""
    size = x.abs()
    keep = size > float(threshold)
    count, total = numbers(keep.sum(), torch.where(keep, size, 0.0).sum(dtype=torch.float64))
    return int(count), total


def kept_weighted(x: torch.Tensor, weight: torch.Tensor, threshold: SupportsFloat) -> tuple[int, float, float]:
    """(how many, sum of weight*|x|, sum of weight) over the elements with |x| > threshold."""
    size = x.abs()
    keep = size > float(threshold)
    factor = torch.where(keep, weight, 0.0).double()
    count, total, mass = numbers(keep.sum(), (factor * size.double()).sum(), factor.sum())
    return int(count), total, mass


# --- packing --------------------------------------------------------------------------------------------------------


def pack(
    x: torch.Tensor,
    trits: np.ndarray,
    inverse: SupportsFloat,
    limit: SupportsFloat,
    clip: bool,
    key: SupportsInt,
) -> None:
    """Ternarize a layer at random into its run; see `kernels.ternary.pack_chunk`."""

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return draw_blocks(blocks, first, float(inverse), float(limit) if clip else None, int(key))

    trits[:] = host(planar.pack(x.view(1, -1), TRITS, 1, code).view(-1))


def pack_signs(x: torch.Tensor, trits: np.ndarray, threshold: SupportsFloat) -> None:
    """Pack the signs of a layer's elements above the threshold (>= 0) into its run, zero for the others."""

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return choose_blocks(blocks, float(threshold))

    trits[:] = host(planar.pack(x.view(1, -1), TRITS, 1, code).view(-1))


def unpack(trits: np.ndarray, y: torch.Tensor, scale: SupportsFloat) -> None:
    """Write a layer: 0, scale or -scale for each digit of its run."""
    blocks = -(-len(y) // (TRITS * SEGMENT))
    y.copy_(values_of(moved(trits, y), len(y), torch.full((blocks,), float(scale), device=y.device)))


def draw_blocks(
    blocks: torch.Tensor, first: int, inverse: float | torch.Tensor, limit: float | None, key: int
) -> torch.Tensor:
    """Digits of blocks [1, count, 5, width] drawn and packed; `inverse` of all or float32 [count, 1]."""
    _, count, _, width = blocks.shape
    packed = blocks.new_zeros((1, count, 1, width), dtype=torch.uint8)
    draws = streams(first * SEGMENT, count * width, key, blocks.device)
    for segment, h in zip(range(TRITS), draws, strict=False):
        values = blocks[0, :, segment]
        level = values.abs() * inverse
        if limit is not None:
            level.clamp_(max=limit)
        drawn = shifted(h, 1).to(torch.float32).view(count, width) < level
        packed[0, :, 0] += _digit(drawn, values) * 3**segment
    return packed


def choose_blocks(blocks: torch.Tensor, threshold: float | torch.Tensor) -> torch.Tensor:
    """The signs above the threshold of blocks [1, count, 5, width], packed; `threshold` of all or [count, 1, 1]."""
    digits = _digit(blocks.abs() > threshold, blocks)
    return (digits * _powers(blocks)).sum(2, keepdim=True, dtype=torch.uint8)


def _digit(chosen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """0 where not chosen, else 1, or 2 where negative (uint8)."""
    return chosen.to(torch.uint8) * (1 + (values < 0).to(torch.uint8))


def _powers(like: torch.Tensor) -> torch.Tensor:
    """1, 3, 9, 27, 81 (uint8 [5, 1])."""
    return 3 ** torch.arange(TRITS, dtype=torch.uint8, device=like.device).view(TRITS, 1)


def values_of(packed: torch.Tensor, size: int, scales: torch.Tensor) -> torch.Tensor:
    """0, scale or -scale of its block (float32 [blocks]) for each packed digit: float32 [size]."""
    powers = _powers(packed)

    def code(bytes_: torch.Tensor, first: int) -> torch.Tensor:
        digits = torch.div(bytes_, powers, rounding_mode="floor") % 3
        scale = scales[first : first + bytes_.shape[1]].view(-1, 1, 1)
        return torch.where(digits == 1, scale, torch.where(digits == 2, -scale, 0.0))

    return planar.unpack(packed.view(1, -1), size, TRITS, 1, code).view(-1)
