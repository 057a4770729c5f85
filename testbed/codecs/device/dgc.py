"""Deep Gradient Compression: `testbed.codecs.kernels.dgc` with torch."""

from __future__ import annotations

from typing import SupportsFloat

import torch


def accumulate(
    x: torch.Tensor,
    factor: SupportsFloat,
    momentum: SupportsFloat,
    nesterov: bool,
    velocity: torch.Tensor,
    total: torch.Tensor,
) -> None:
    """u <- momentum * u + factor * x; total += u, in place; see `kernels.dgc.accumulate_chunk`."""
    gradient = x * float(factor)
    if not velocity.numel():
        total += gradient
        return
    velocity *= float(momentum)
    velocity += gradient
    total += (gradient + velocity * float(momentum)) if nesterov else velocity
