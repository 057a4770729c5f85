"""Quantized factors with torch: the kernels of `testbed.codecs.factor_kernels`. Signals are flat here."""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
import torch

from testbed.codecs.device.planar import hashed, quotient, shifted
from testbed.codecs.factor_kernels import LARGEST


def bin_sums(x: torch.Tensor, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many elements lie between each two thresholds, zeros left out, and their sums.

    Returns
    -------
    (int64 [thresholds + 1], float64 [thresholds + 1])
    """
    symbols = classify(x, thresholds)
    bins = [symbols == number for number in range(1, thresholds.size + 2)]
    counts = torch.stack([bin_.sum() for bin_ in bins])
    sums = torch.stack([torch.where(bin_, x, 0.0).sum(dtype=torch.float64) for bin_ in bins])
    return counts.cpu().numpy(), sums.cpu().numpy()


def classify(x: torch.Tensor, thresholds: np.ndarray) -> torch.Tensor:
    """0 for each zero, for others one more than the number of thresholds they are above: uint8 [n]."""
    symbols = torch.ones_like(x, dtype=torch.uint8)
    for threshold in thresholds.tolist():
        symbols += x > threshold
    return torch.where(x == 0, 0, symbols)


def points_of(symbols: torch.Tensor, points: np.ndarray) -> torch.Tensor:
    """The point of each symbol: float32 [n]."""
    return torch.from_numpy(points).to(symbols.device).index_select(0, symbols.to(torch.int32))


def dither(x: torch.Tensor, scale: float, levels: int, key: SupportsInt) -> torch.Tensor:
    """`levels` plus the index of the bin that x / scale + u lies in: uint8 [n]; see `factor_kernels.dither`."""
    index = (quotient(x.double(), scale) + _dithers(x, key)).round_()
    return (index.clamp_(-levels, levels) + levels).to(torch.uint8)


def undither(symbols: torch.Tensor, scale: float, levels: int, key: SupportsInt) -> torch.Tensor:
    """scale * (index - u), within float32's range: float32 [n]; see `factor_kernels.undither`."""
    index = symbols.double() - levels
    return ((index - _dithers(symbols, key)) * scale).clamp_(-LARGEST, LARGEST).float()


def _dithers(like: torch.Tensor, key: SupportsInt) -> torch.Tensor:
    """u for each element, float64 [n]; see `factor_kernels._dither`."""
    drawn = shifted(hashed(0, len(like), int(key), like.device), 8)
    return (drawn.double() + 0.5) * 2.0**-24 - 0.5
