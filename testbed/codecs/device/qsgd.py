"""QSGD's buckets with torch: the kernels of `testbed.codecs.qsgd_kernels`."""

from __future__ import annotations

from typing import SupportsInt

import torch

from testbed.codecs.device.planar import hashed, quotient, rows_of, shifted
from testbed.codecs.qsgd_kernels import LARGEST, UNIT


def qsgd_quantize(
    x: torch.Tensor, levels: int, bucket: int, euclidean: bool, key: SupportsInt
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a layer's buckets at random; see `qsgd_kernels.qsgd_quantize`.

    Returns
    -------
    (raised levels uint8 [n]; norms float32 [ceil(n / bucket)], not finite where a value is not)
    """
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


def qsgd_scale(raised: torch.Tensor, norms: torch.Tensor, levels: int, bucket: int) -> torch.Tensor:
    """(raised - levels) * norm / levels, made in float64, for raised levels [n] of any type: float32 [n]."""
    return _by_bucket(raised.to(torch.int32) - levels, quotient(norms.double(), levels), bucket).float()


def _by_bucket(values: torch.Tensor, factors: torch.Tensor, bucket: int) -> torch.Tensor:
    """Each value times its bucket's factor, float64 [n]."""
    products = [factors.new_empty(0)]
    for part in rows_of(values, bucket):
        products.append((part.double() * factors[: len(part)].view(-1, 1)).view(-1))
        factors = factors[len(part) :]
    return torch.cat(products)
