"""k-bit messages: `testbed.codecs.kernels.uniform` with torch."""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
import torch

from testbed.codecs.device.planar import hashed, pack_planes, shifted, unpack_planes
from testbed.codecs.device.vectors import host, moved
from testbed.codecs.kernels.planar import PLANES


def extremes(x: torch.Tensor, rest: torch.Tensor | None) -> tuple[np.float32, np.float32]:
    """(smallest, largest) of a layer of x, or of x + rest; NaN or infinite where one of them is, and -0 is below 0."""
    bits = (x if rest is None else x + rest).view(torch.int32)
    low, high = torch.aminmax(_flipped(bits))
    ends = host(_flipped(torch.stack([low, high])).view(torch.float32))
    return ends[0], ends[1]


def _flipped(bits: torch.Tensor) -> torch.Tensor:
    """The int32 that compare as the floats of these bits do; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def quantize(x: torch.Tensor, levels: np.ndarray, low: float, step: float, random: bool, key: SupportsInt) -> None:
    """Write the levels of a layer; see `kernels.uniform.quantize_chunk`."""
    levels[:] = host(_levels(x, low, step, random, key).to(torch.uint8))


def pack(
    x: torch.Tensor,
    rest: torch.Tensor | None,
    planes: np.ndarray,
    low: float,
    step: float,
    bits: int,
    random: bool,
    key: SupportsInt,
) -> None:
    """Pack the levels of a layer of x + rest; `rest` becomes what they leave of it."""
    if rest is not None:
        rest += x
        x = rest
    levels = _levels(x, low, step, random, key)
    if rest is not None:
        rest -= _values(levels, low, step)
    planes[:] = host(levels.to(torch.uint8) if bits == PLANES else pack_planes(levels, bits))


def unpack(planes: np.ndarray, y: torch.Tensor, low: float, step: float, bits: int) -> None:
    """Write a layer: low + level * step, made in float64, for each packed level."""
    packed = moved(planes, y)
    y.copy_(_values(packed if bits == PLANES else unpack_planes(packed, len(y), bits), low, step))


def _levels(x: torch.Tensor, low: float, step: float, random: bool, key: SupportsInt) -> torch.Tensor:
    """The level of each value, int32 [n]; see `kernels.uniform.quantize_chunk`."""
    part: float | torch.Tensor = 0.5
    if random:
        part = shifted(hashed(0, x.numel(), int(key), x.device), 1).double() * 2.0**-31
    return ((x.double() - low) * (1 / step if step > 0 else 0.0) + part).to(torch.int32)


def _values(levels: torch.Tensor, low: float, step: float) -> torch.Tensor:
    return (levels.double() * step + low).float()
