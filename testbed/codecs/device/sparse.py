"""Selection by magnitude, and scattering: `testbed.codecs.kernels.sparse` with torch.

Only what is selected leaves the device.
"""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
import torch

from testbed.codecs.buffers import Allocate
from testbed.codecs.device.vectors import host, moved


def select(x: torch.Tensor, threshold: SupportsInt, allocate: Allocate) -> np.ndarray:
    """The places (uint32, increasing) of the elements with bits of the magnitude >= threshold > 0.

    NaN and infinity are always among them.
    """
    return to_places(torch.nonzero(magnitudes(x) >= int(threshold)).view(-1))


def add_select(x: torch.Tensor, total: torch.Tensor, threshold: SupportsInt, allocate: Allocate) -> np.ndarray:
    """total += x, and `select` from the total."""
    total += x
    return select(total, threshold, allocate)


def gather(x: torch.Tensor, places: np.ndarray, allocate: Allocate) -> np.ndarray:
    """x[places]."""
    return host(x[_indexes(places, x)])


def put(x: torch.Tensor, places: np.ndarray, values: np.ndarray) -> None:
    """x[places] = values; places are below x.size."""
    x[_indexes(places, x)] = moved(values, x)


def add(x: torch.Tensor, places: np.ndarray, values: np.ndarray) -> None:
    """x[places] += values; places are below x.size."""
    x.index_add_(0, _indexes(places, x), moved(values, x))


def magnitudes(x: torch.Tensor) -> torch.Tensor:
    """The bits of |x| (int32 [n]), which order magnitudes as numbers do, infinity and NaN above all others."""
    return x.view(torch.int32) & 0x7FFFFFFF


def to_places(indexes: torch.Tensor) -> np.ndarray:
    """Indexes (int64) as places on the CPU (uint32)."""
    return host(indexes).astype(np.uint32)


def _indexes(places: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    """Places as indexes on the device of x."""
    return moved(places.astype(np.int64), x)
