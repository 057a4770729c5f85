"""Powers of two below a layer's largest magnitude: `testbed.codecs.kernels.e3m0` with torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from testbed.codecs.device.vectors import host, moved
from testbed.codecs.kernels.e3m0 import TOP, VALUES

_VALUES = torch.from_numpy(VALUES)
PAIRS = torch.stack([_VALUES.repeat(16), _VALUES.repeat_interleave(16)], 1)  # what bytes stand for


def pack(x: torch.Tensor, packed: np.ndarray, scales: np.ndarray, ends: np.ndarray) -> None:
    """Write the codes of a vector whose layers end there, each on its scale: its largest magnitude, 0 if that is 0."""
    codes = torch.zeros(2 * packed.size, dtype=torch.uint8, device=x.device)
    for scale, (start, end) in zip(scales.tolist(), pairwise([0, *ends.tolist()]), strict=True):
        if scale > 0:
            codes[start:end] = codes_of(x[start:end], scale)
    pairs = codes.view(-1, 2)
    packed[:] = host(pairs[:, 0] | pairs[:, 1] << 4)


def unpack(packed: np.ndarray, y: torch.Tensor, scales: np.ndarray, ends: np.ndarray) -> None:
    """Write what each code stands for: a power of two times the scale of its layer, or 0."""
    both = PAIRS.to(y.device).index_select(0, moved(packed.astype(np.int32), y))
    y.copy_(both.flatten()[: len(y)])
    for scale, (start, end) in zip(scales.tolist(), pairwise([0, *ends.tolist()]), strict=True):
        y[start:end] *= scale


def codes_of(part: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Codes (uint8 [n]) on one scale above 0, or on each element's own.

    What is at least 1.5 * 2^k goes up, since times 4 / 3 it has the next exponent.
    """
    ratio = part.abs().div_(scale)
    smallest = ratio >= 2.0**-TOP
    exponent = (ratio.mul_(4 / 3).view(torch.int32) >> 23).sub_(127 - TOP)
    return exponent.clamp_(0, TOP).to(torch.uint8).max(smallest.to(torch.uint8)).bitwise_or_((part < 0).byte() << 3)
