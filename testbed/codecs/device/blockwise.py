"""Ternary with a scale for every block: `testbed.codecs.kernels.blockwise` with torch."""

from __future__ import annotations

from typing import SupportsFloat, SupportsInt

import numpy as np
import torch

from testbed.codecs.device import planar
from testbed.codecs.device.planar import quotient, rows_of
from testbed.codecs.device.ternary import choose_blocks, draw_blocks, values_of
from testbed.codecs.device.vectors import host, moved
from testbed.codecs.kernels.blockwise import BLOCK
from testbed.codecs.kernels.ternary import DRAW_RANGE, TRITS
from testbed.codecs.kernels.vectors import HIGH_BITS, LOW_BITS


def draw(x: torch.Tensor, trits: np.ndarray, scales: np.ndarray, clip: SupportsFloat, key: SupportsInt) -> bool:
    """Ternarize a layer at random into its run, each block on its own scale; whether all values are finite."""
    found, powers, inverses = (torch.cat(column) for column in zip(*_scales(x, float(clip)), strict=True))

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        here = slice(first, first + blocks.shape[1])
        return draw_blocks(blocks * powers[here].view(-1, 1, 1), first, inverses[here].view(-1, 1), None, int(key))

    trits[:], scales[:] = host(planar.pack(x.view(1, -1), TRITS, 1, code).view(-1)), host(found)
    return bool(np.isfinite(scales).all())


def _scales(x: torch.Tensor, clip: float) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
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


def feed_back(x: torch.Tensor, residual: torch.Tensor, trits: np.ndarray, scales: np.ndarray) -> bool:
    """Send the ternary of a layer of x + residual and keep in `residual` what is left; whether all are finite."""
    residual += x
    limits, alphas = [x.new_empty(0)], [x.new_empty(0)]
    for part in rows_of(residual, BLOCK):
        size = part.abs()
        limit = (0.7 * size.sum(1, dtype=torch.float64) / part.shape[1]).float()
        keep = size > limit.view(-1, 1)
        total = torch.where(keep, size, 0.0).sum(1, dtype=torch.float64)
        limits.append(limit)
        alphas.append((total / keep.sum(1).clamp(min=1)).float())
    threshold, found = torch.cat(limits), torch.cat(alphas)

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return choose_blocks(blocks, threshold[first : first + blocks.shape[1]].view(-1, 1, 1))

    packed = planar.pack(residual.view(1, -1), TRITS, 1, code).view(-1)
    trits[:], scales[:] = host(packed), host(found)
    residual -= values_of(packed, residual.numel(), found)
    return bool(torch.isfinite(threshold).all().item())


def unpack(trits: np.ndarray, y: torch.Tensor, scales: np.ndarray) -> None:
    """Write a layer: 0, scale or -scale of its block for each digit of its run."""
    y.copy_(values_of(moved(trits, y), len(y), moved(scales, y)))
