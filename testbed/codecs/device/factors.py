"""Quantized factors: `testbed.codecs.kernels.factors` with torch. Signals are flat here."""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
import torch

from testbed.codecs.buffers import Allocate
from testbed.codecs.device import uniform
from testbed.codecs.device.planar import hashed, quotient, shifted
from testbed.codecs.device.vectors import moments_wide, moved
from testbed.codecs.kernels.factors import LARGEST


def nonzero(x: torch.Tensor) -> int:
    """How many elements of a signal are not zero."""
    return int(torch.count_nonzero(x).item())


def extremes(x: torch.Tensor) -> tuple[float, float]:
    """(smallest, largest) of at least one finite value."""
    low, high = uniform.extremes(x, None)
    return float(low), float(high)


def sums(x: torch.Tensor) -> tuple[float, float]:
    """(sum, sum of squares), in float64."""
    return moments_wide(x)


def bin_sums(x: torch.Tensor, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many elements lie between each two thresholds, zeros left out, and their sums.

    Returns
    -------
    (int64 [thresholds + 1], float64 [thresholds + 1])
    """
    symbols = _symbols(x, thresholds)
    bins = [symbols == number for number in range(1, thresholds.size + 2)]
    counts = torch.stack([bin_.sum() for bin_ in bins])
    sums = torch.stack([torch.where(bin_, x, 0.0).sum(dtype=torch.float64) for bin_ in bins])
    return counts.cpu().numpy(), sums.cpu().numpy()


def classify(x: torch.Tensor, thresholds: np.ndarray, allocate: Allocate) -> torch.Tensor:
    """0 for each zero, for others one more than the number of thresholds they are above: uint8 [n]."""
    return _symbols(x, thresholds)


def lowered(symbols: torch.Tensor) -> torch.Tensor:
    """Each symbol less one, but for zeros."""
    return symbols - (symbols > 0).to(torch.uint8)


def _symbols(x: torch.Tensor, thresholds: np.ndarray) -> torch.Tensor:
    symbols = torch.ones_like(x, dtype=torch.uint8)
    for threshold in thresholds.tolist():
        symbols += x > threshold
    return torch.where(x == 0, 0, symbols)


def points_of(symbols: torch.Tensor, points: np.ndarray, allocate: Allocate) -> torch.Tensor:
    """The point of each symbol, of which there is one for every symbol: float32 [n]."""
    return moved(points, symbols).index_select(0, symbols.to(torch.int32))


def dither(x: torch.Tensor, scale: float, levels: int, key: SupportsInt, allocate: Allocate) -> torch.Tensor:
    """`levels` plus the index of the bin that x / scale + u lies in: uint8 [n]."""
    index = (quotient(x.double(), scale) + _dithers(x, key)).round_()
    return (index.clamp_(-levels, levels) + levels).to(torch.uint8)


def undither(symbols: torch.Tensor, scale: float, levels: int, key: SupportsInt, allocate: Allocate) -> torch.Tensor:
    """scale * (index - u) of each symbol, within float32's range: float32 [n]."""
    index = symbols.double() - levels
    return ((index - _dithers(symbols, key)) * scale).clamp_(-LARGEST, LARGEST).float()


def _dithers(like: torch.Tensor, key: SupportsInt) -> torch.Tensor:
    """u for each element, float64 [n]; see `kernels.factors._dither`."""
    drawn = shifted(hashed(0, len(like), int(key), like.device), 8)
    return (drawn.double() + 0.5) * 2.0**-24 - 0.5
