"""The adaptive quantizer: `testbed.codecs.kernels.adaptive` with torch."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs.device.vectors import host, moved
from testbed.codecs.kernels.adaptive import MIDDLE


def quantize(x: torch.Tensor, symbols: np.ndarray, rest: torch.Tensor | None, step: float, top: float) -> None:
    """Write a layer's symbols: of the multiples of `step` nearest to each x, at most `top` of them.

    Where there is a rest, it becomes what they leave of x.
    """
    inverse = 1 / step if step > 0 else 0.0
    found = ((x.double() * inverse).round_().clamp_(-top, top) + MIDDLE).to(torch.uint8)
    symbols[:] = host(found)
    if rest is not None:
        torch.sub(x, _values(found, step), out=rest)


def reconstruct(symbols: np.ndarray, y: torch.Tensor, step: float) -> None:
    """Write a layer: the multiple of `step` of each symbol."""
    y.copy_(_values(moved(symbols, y), step))


def _values(symbols: torch.Tensor, step: float) -> torch.Tensor:
    return ((symbols.double() - MIDDLE) * step).float()
