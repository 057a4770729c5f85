"""One signal of quantized factors to symbols and back, where it is: arrays on the CPU, tensors elsewhere. All flat."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs import factor_kernels, kernels
from testbed.codecs.base import Elements
from testbed.codecs.buffers import BufferPool
from testbed.codecs.device import factors as on_device
from testbed.codecs.device import planes
from testbed.codecs.device.ternary import moments


def nonzero(x: Elements) -> int:
    """How many elements are not zero."""
    return int(torch.count_nonzero(x).item()) if isinstance(x, torch.Tensor) else int(np.count_nonzero(x))


def extremes(x: Elements) -> tuple[float, float]:
    """(smallest, largest) of at least one finite value."""
    low, high = planes.extremes(x) if isinstance(x, torch.Tensor) else (x.min(), x.max())
    return float(low), float(high)


def sums(x: Elements) -> tuple[float, float]:
    """(sum, sum of squares), in float64."""
    return moments(x)[:2] if isinstance(x, torch.Tensor) else kernels.moments_wide(x)


def bin_sums(x: Elements, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many elements lie between each two thresholds (int64), zeros left out, and their sums (float64)."""
    if isinstance(x, torch.Tensor):
        return on_device.bin_sums(x, thresholds)
    counts, totals = np.zeros(thresholds.size + 1, np.int64), np.zeros(thresholds.size + 1)
    factor_kernels.bin_sums(x, thresholds, counts, totals)
    return counts, totals


def classify(x: Elements, thresholds: np.ndarray, pool: BufferPool) -> Elements:
    """0 for each zero, for others one more than the number of thresholds they are above (uint8)."""
    if isinstance(x, torch.Tensor):
        return on_device.classify(x, thresholds)
    symbols = pool.take(x.size)
    factor_kernels.classify(x, thresholds, symbols)
    return symbols


def points_of(symbols: Elements, points: np.ndarray, pool: BufferPool) -> Elements:
    """The point of each symbol (float32); there is one for every symbol."""
    if isinstance(symbols, torch.Tensor):
        return on_device.points_of(symbols, points)
    values = pool.take(symbols.size, np.float32)
    factor_kernels.points_of(symbols, points, values)
    return values


def dither(x: Elements, scale: float, levels: int, key: np.uint32, pool: BufferPool) -> Elements:
    """`levels` plus the index of the bin that x / scale + u lies in (uint8)."""
    if isinstance(x, torch.Tensor):
        return on_device.dither(x, scale, levels, key)
    symbols = pool.take(x.size)
    factor_kernels.dither(x, symbols, scale, levels, key)
    return symbols


def undither(symbols: Elements, scale: float, levels: int, key: np.uint32, pool: BufferPool) -> Elements:
    """scale * (index - u) of each symbol (float32), within float32's range."""
    if isinstance(symbols, torch.Tensor):
        return on_device.undither(symbols, scale, levels, key)
    values = pool.take(symbols.size, np.float32)
    factor_kernels.undither(symbols, values, scale, levels, key)
    return values
