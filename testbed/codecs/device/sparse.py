"""Selection by magnitude with torch; only what is selected leaves the device."""

from __future__ import annotations

from typing import SupportsFloat, SupportsInt

import torch


def magnitudes(x: torch.Tensor) -> torch.Tensor:
    """The bits of |x| (int32 [n]), which order magnitudes as numbers do, infinity and NaN above all others."""
    return x.view(torch.int32) & 0x7FFFFFFF


def select(x: torch.Tensor, threshold: SupportsInt) -> torch.Tensor:
    """The places (int64, increasing) of the elements with bits of the magnitude >= threshold > 0."""
    return torch.nonzero(magnitudes(x) >= int(threshold)).view(-1)


def largest_places(x: torch.Tensor, wanted: int) -> torch.Tensor:
    """The places (int64, increasing) of the `wanted` largest magnitudes, the first of equal ones, never of zeros."""
    bits = magnitudes(x)
    threshold = torch.topk(bits, wanted, sorted=False).values.min().clamp(min=1) if 0 < wanted < len(x) else 1
    places = torch.nonzero(bits >= threshold).view(-1)
    surplus = len(places) - wanted
    if surplus > 0:
        ties = torch.nonzero(bits[places] == threshold).view(-1)
        chosen = torch.ones_like(places, dtype=torch.bool)
        chosen[ties[-surplus:]] = False
        places = places[chosen]
    return places


def accumulate(
    x: torch.Tensor, factor: SupportsFloat, momentum: float, nesterov: bool, velocity: torch.Tensor, total: torch.Tensor
) -> None:
    """u <- momentum * u + factor * x; total += u, in place; see `sparse_kernels.accumulate`."""
    gradient = x * float(factor)
    if not velocity.numel():
        total += gradient
        return
    velocity *= momentum
    velocity += gradient
    total += (gradient + velocity * momentum) if nesterov else velocity
