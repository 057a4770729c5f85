"""What all codecs ask of a vector or a layer of it: `testbed.codecs.kernels.vectors` with torch."""

from __future__ import annotations

import numpy as np
import torch


def host(x: torch.Tensor) -> np.ndarray:
    """A copy of the values as an array on the CPU."""
    return x.cpu().numpy()


def moved(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """An array on the device of `like`."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(like.device)


def write(values: np.ndarray, x: torch.Tensor) -> None:
    """x = values."""
    x.copy_(moved(values, x))


def largest_bits(x: torch.Tensor) -> int:
    """The bits of the largest magnitude, `INFINITY_BITS` or more where one is not finite; 0 of nothing."""
    return bits_of(largest(x).item())


def moments(x: torch.Tensor) -> tuple[float, float, int]:
    """(sum, sum of squares, bits of the largest magnitude), for all float32 without overflow."""
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    total, squares, top = numbers(x.sum(dtype=torch.float64), norm * norm, largest(x))
    return total, squares, bits_of(top)


def moments_wide(x: torch.Tensor) -> tuple[float, float]:
    """(sum, sum of squares): those of `moments`, which are in float64 here."""
    return moments(x)[:2]


def largest(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude (scalar), NaN where there is one, 0 of nothing."""
    if not x.numel():
        return x.new_zeros(())
    low, high = torch.aminmax(x)
    return torch.maximum(low.abs(), high.abs())


def bits_of(magnitude: float) -> int:
    """The bits of a magnitude as float32: those of a NaN and of an infinity are `INFINITY_BITS` or more."""
    return int(np.float32(magnitude).view(np.uint32)) & 0x7FFFFFFF


def numbers(*scalars: torch.Tensor) -> list[float]:
    """The values of scalars, in one transfer."""
    return torch.stack([scalar.double() for scalar in scalars]).cpu().tolist()
