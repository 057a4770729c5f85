"""QSGD's buckets: `testbed.codecs.kernels.qsgd` with torch."""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
import torch

from testbed.codecs.device.planar import hashed, pack_planes, quotient, rows_of, shifted, unpack_planes
from testbed.codecs.device.vectors import host, moved
from testbed.codecs.kernels.qsgd import LARGEST, UNIT


def quantize(
    x: torch.Tensor, raised: np.ndarray, norms: np.ndarray, levels: int, bucket: int, euclidean: bool, key: SupportsInt
) -> bool:
    """Quantize a layer's buckets at random; see `kernels.qsgd.quantize_chunk`."""
    found, scales = _quantize(x, levels, bucket, euclidean, key)
    raised[:], norms[:] = host(found), host(scales)
    return bool(np.isfinite(norms).all())


def pack(
    x: torch.Tensor,
    planes: np.ndarray,
    norms: np.ndarray,
    levels: int,
    bucket: int,
    euclidean: bool,
    key: SupportsInt,
    bits: int,
) -> bool:
    """`quantize`, and pack the raised levels into bit planes."""
    found, scales = _quantize(x, levels, bucket, euclidean, key)
    planes[:], norms[:] = host(pack_planes(found, bits)), host(scales)
    return bool(np.isfinite(norms).all())


def scale(raised: np.ndarray, y: torch.Tensor, norms: np.ndarray, levels: int, bucket: int) -> None:
    """Write a layer: (raised - levels) * norm / levels, made in float64."""
    y.copy_(_values(moved(raised, y), moved(norms, y), levels, bucket))


def unpack(planes: np.ndarray, y: torch.Tensor, norms: np.ndarray, levels: int, bucket: int, bits: int) -> int:
    """`scale` of packed levels; return the largest raised level, which must not be above 2 * levels."""
    raised = unpack_planes(moved(planes, y), len(y), bits)
    y.copy_(_values(raised, moved(norms, y), levels, bucket))
    return int(raised.max().item()) if len(y) else 0


def _quantize(
    x: torch.Tensor, levels: int, bucket: int, euclidean: bool, key: SupportsInt
) -> tuple[torch.Tensor, torch.Tensor]:
    """(raised levels uint8 [n]; norms float32 [ceil(n / bucket)], not finite where a value is not)."""
    norms = torch.cat([x.new_empty(0), *(_norms(part, euclidean) for part in rows_of(x, bucket))])
    wide = norms.double()
    factors = torch.where(norms > 0, quotient(levels * UNIT, wide), 0.0)
    sizes = (_by_bucket(x.abs(), factors, bucket)).to(torch.int32)
    level = (sizes + shifted(hashed(0, len(x), int(key), x.device), 8)) >> 24
    return (torch.where(torch.signbit(x), -level, level) + levels).to(torch.uint8), norms


def _norms(part: torch.Tensor, euclidean: bool) -> torch.Tensor:
    """The scale of each row, float32 and at least as large as every |x| of it."""
    largest = part.abs().amax(1)
    if not euclidean:
        return largest
    norm = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).clamp(max=LARGEST)
    return torch.where(largest.isfinite(), torch.maximum(norm, largest.double()).float(), largest)


def _values(raised: torch.Tensor, norms: torch.Tensor, levels: int, bucket: int) -> torch.Tensor:
    """(raised - levels) * norm / levels, made in float64, for raised levels [n] of any type: float32 [n]."""
    return _by_bucket(raised.to(torch.int32) - levels, quotient(norms.double(), levels), bucket).float()


def _by_bucket(values: torch.Tensor, factors: torch.Tensor, bucket: int) -> torch.Tensor:
    """Each value times its bucket's factor, float64 [n]."""
    products = [factors.new_empty(0)]
    for part in rows_of(values, bucket):
        products.append((part.double() * factors[: len(part)].view(-1, 1)).view(-1))
        factors = factors[len(part) :]
    return torch.cat(products)
