"""Sums of ternary messages: `testbed.codecs.kernels.levels` with torch."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs.buffers import Allocate
from testbed.codecs.device.planar import unpack_planes
from testbed.codecs.device.vectors import moved


def unpack(planes: np.ndarray, y: torch.Tensor, count: int, bits: int, step: float, allocate: Allocate) -> int:
    """Write a layer: (level - count) * step for each packed level, the product in float64; the largest level."""
    raised = unpack_planes(moved(planes, y), len(y), bits)
    y.copy_(((raised - count).double() * step).float())
    return int(raised.max().item()) if len(y) else 0
