"""Ternary vectors with torch: the kernels of `testbed.codecs.kernels` and `block_kernels`."""

from __future__ import annotations

from typing import SupportsFloat, SupportsInt

import torch

from testbed.codecs.block_kernels import BLOCK, HIGH_BITS, LOW_BITS
from testbed.codecs.device.planar import bits_of, largest, pack, quotient, rows_of, shifted, streams, unpack
from testbed.codecs.kernels import DRAW_RANGE, SEGMENT, TRITS

# --- statistics of a layer: numbers of the host, in one transfer ----------------------------------------------------


def moments(x: torch.Tensor) -> tuple[float, float, int]:
    """Return (sum, sum of squares, bits of the largest magnitude), for all float32 without overflow."""
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    total, squares, top = _numbers(x.sum(dtype=torch.float64), norm * norm, largest(x))
    return total, squares, bits_of(top)


def magnitude(x: torch.Tensor) -> tuple[float, int]:
    """Return (sum of |x|, bits of the largest magnitude)."""
    total, top = _numbers(x.abs().sum(dtype=torch.float64), largest(x))
    return total, bits_of(top)


def kept(x: torch.Tensor, threshold: SupportsFloat) -> tuple[int, float]:
    """Return (how many, sum of |x|) over the elements with |x| > threshold."""
    size = x.abs()
    keep = size > float(threshold)
    count, total = _numbers(keep.sum(), torch.where(keep, size, 0.0).sum(dtype=torch.float64))
    return int(count), total


def kept_weighted(x: torch.Tensor, weight: torch.Tensor, threshold: SupportsFloat) -> tuple[int, float, float]:
    """Return (how many, sum of weight*|x|, sum of weight) over the elements with |x| > threshold."""
    size = x.abs()
    keep = size > float(threshold)
    factor = torch.where(keep, weight, 0.0).double()
    count, total, mass = _numbers(keep.sum(), (factor * size.double()).sum(), factor.sum())
    return int(count), total, mass


def _numbers(*scalars: torch.Tensor) -> list[float]:
    return torch.stack([scalar.double() for scalar in scalars]).cpu().tolist()


# --- packing --------------------------------------------------------------------------------------------------------


def ternary_pack(
    x: torch.Tensor, inverse: SupportsFloat, limit: SupportsFloat, clip: bool, key: SupportsInt
) -> torch.Tensor:
    """Ternarize a layer [n] at random; see `kernels.ternary_pack`. Returns uint8 [ceil(n / 5)]."""

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return _draw(blocks, first, float(inverse), float(limit) if clip else None, int(key))

    return pack(x.view(1, -1), TRITS, 1, code).view(-1)


def _draw(
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


def threshold_pack(x: torch.Tensor, threshold: SupportsFloat) -> torch.Tensor:
    """Pack sign(x) where |x| > threshold, else 0; see `kernels.threshold_pack`. Returns uint8 [ceil(n / 5)]."""
    return pack(x.view(1, -1), TRITS, 1, lambda blocks, first: _choose(blocks, float(threshold))).view(-1)


def _choose(blocks: torch.Tensor, threshold: float | torch.Tensor) -> torch.Tensor:
    """The signs above the threshold of blocks [1, count, 5, width], packed; `threshold` of all or [count, 1, 1]."""
    digits = _digit(blocks.abs() > threshold, blocks)
    return (digits * _powers(blocks)).sum(2, keepdim=True, dtype=torch.uint8)


def _digit(chosen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """0 where not chosen, else 1, or 2 where negative (uint8)."""
    return chosen.to(torch.uint8) * (1 + (values < 0).to(torch.uint8))


def _powers(like: torch.Tensor) -> torch.Tensor:
    """1, 3, 9, 27, 81 (uint8 [5, 1])."""
    return 3 ** torch.arange(TRITS, dtype=torch.uint8, device=like.device).view(TRITS, 1)


def ternary_unpack(packed: torch.Tensor, size: int, scale: SupportsFloat) -> torch.Tensor:
    """0, scale or -scale for each packed digit: float32 [size]; see `kernels.ternary_unpack`."""
    return block_unpack(packed, size, torch.full((-(-size // BLOCK),), float(scale), device=packed.device))


def block_unpack(packed: torch.Tensor, size: int, scales: torch.Tensor) -> torch.Tensor:
    """0, scale or -scale of its block (float32 [blocks]) for each packed digit: float32 [size]."""
    powers = _powers(packed)

    def code(bytes_: torch.Tensor, first: int) -> torch.Tensor:
        digits = torch.div(bytes_, powers, rounding_mode="floor") % 3
        scale = scales[first : first + bytes_.shape[1]].view(-1, 1, 1)
        return torch.where(digits == 1, scale, torch.where(digits == 2, -scale, 0.0))

    return unpack(packed.view(1, -1), size, TRITS, 1, code).view(-1)


# --- a scale for every block ----------------------------------------------------------------------------------------


def block_draw(x: torch.Tensor, clip: SupportsFloat, key: SupportsInt) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Ternarize a layer at random, each block on its own scale; see `block_kernels.block_draw`.

    Returns
    -------
    (uint8 [ceil(n / 5)], scales float32 [ceil(n / 5120)], whether all values are finite)
    """
    scales, powers, inverses = (torch.cat(column) for column in zip(*_block_scales(x, float(clip)), strict=True))

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        here = slice(first, first + blocks.shape[1])
        return _draw(blocks * powers[here].view(-1, 1, 1), first, inverses[here].view(-1, 1), None, int(key))

    return pack(x.view(1, -1), TRITS, 1, code).view(-1), scales, bool(torch.isfinite(scales).all().item())


def _block_scales(x: torch.Tensor, clip: float) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(scale, power of two that brings the block near 1, 2^31 / (scale * power)) of each block, float32 [blocks]."""
    none = x.new_empty(0)
    found = [(none, none, none)]
    for part in rows_of(x, BLOCK):
        top = part.abs().amax(1)
        power = _power(top)
        part = part * power.view(-1, 1)
        mean = part.sum(1, dtype=torch.float64) / part.shape[1]
        norm = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        mean_square = norm * norm / part.shape[1]
        variance = mean_square - mean * mean
        limit = (top * power).double()
        if clip > 0:
            clipped = torch.minimum(clip * variance.clamp(min=0).sqrt(), limit)
            limit = torch.where(variance > 1e-6 * mean_square, clipped, limit)
        near = limit.float()
        inverse = torch.where(near > 0, quotient(DRAW_RANGE, near.double()).float(), 0.0)
        found.append((near / power, power, inverse))
    return found


def _power(top: torch.Tensor) -> torch.Tensor:
    """The powers of two that the kernel multiplies blocks of these largest magnitudes by (1: squares are in range)."""
    bits = top.view(torch.int32)
    exponent = (127 - (bits >> 23)).clamp(-126, 126)
    power = ((exponent + 127) << 23).view(torch.float32)
    return torch.where((bits != 0) & ((bits < int(LOW_BITS)) | (bits > int(HIGH_BITS))), power, 1.0)


def block_feedback(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Send the ternary of x + residual and keep in `residual` what is left; see `block_kernels.block_feedback`.

    Returns
    -------
    (uint8 [ceil(n / 5)], scales float32 [ceil(n / 5120)], whether all values are finite)
    """
    residual += x
    limits, alphas = [x.new_empty(0)], [x.new_empty(0)]
    for part in rows_of(residual, BLOCK):
        size = part.abs()
        limit = (0.7 * size.sum(1, dtype=torch.float64) / part.shape[1]).float()
        keep = size > limit.view(-1, 1)
        total = torch.where(keep, size, 0.0).sum(1, dtype=torch.float64)
        limits.append(limit)
        alphas.append((total / keep.sum(1).clamp(min=1)).float())
    threshold, scales = torch.cat(limits), torch.cat(alphas)

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return _choose(blocks, threshold[first : first + blocks.shape[1]].view(-1, 1, 1))

    packed = pack(residual.view(1, -1), TRITS, 1, code).view(-1)
    ok = bool(torch.isfinite(threshold).all().item())
    residual -= block_unpack(packed, residual.numel(), scales)
    return packed, scales, ok
