"""The adaptive quantizer with torch: the kernels of `testbed.codecs.adaptive_kernels`."""

from __future__ import annotations

import torch

from testbed.codecs.adaptive_kernels import MIDDLE


def quantize(x: torch.Tensor, step: float, top: float) -> torch.Tensor:
    """The symbols (uint8 [n]) of the multiples of `step` nearest to x; see `adaptive_kernels.quantize`."""
    inverse = 1 / step if step > 0 else 0.0
    return ((x.double() * inverse).round_().clamp_(-top, top) + MIDDLE).to(torch.uint8)


def reconstruct(symbols: torch.Tensor, step: float) -> torch.Tensor:
    """The multiple of `step` of each symbol: float32 [n]."""
    return ((symbols.double() - MIDDLE) * step).float()
