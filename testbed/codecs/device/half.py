"""Half precision: `testbed.codecs.kernels.half` with torch."""

from __future__ import annotations

from typing import SupportsFloat

import numpy as np
import torch

from testbed.codecs.device.vectors import host, largest_bits, moved


def pack(x: torch.Tensor, halves: np.ndarray, factor: SupportsFloat, limit: SupportsFloat) -> None:
    """Write the bits (uint16) of the halves nearest to x * factor, ties to even, cut to +-limit."""
    cut = (x * float(factor)).clamp(-float(limit), float(limit))
    halves[:] = host(cut.half().view(torch.uint16))


def unpack(halves: np.ndarray, y: torch.Tensor, factor: SupportsFloat) -> int:
    """Write the float32 of each half times `factor`; return the bits of the largest magnitude."""
    y.copy_(moved(halves, y).view(torch.float16).float() * float(factor))
    return largest_bits(y)
