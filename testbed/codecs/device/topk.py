"""The largest magnitudes of a layer: `testbed.codecs.kernels.topk` with torch."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs.buffers import Allocate
from testbed.codecs.device.sparse import magnitudes, to_places


def largest(x: torch.Tensor, wanted: int, allocate: Allocate) -> tuple[np.ndarray, int]:
    """The places (uint32, increasing) of the `wanted` largest magnitudes, the first of equal ones, never of zeros.

    Returns
    -------
    (places, bits of the largest magnitude, 0 of nothing)
    """
    bits = magnitudes(x)
    threshold = torch.topk(bits, wanted, sorted=False).values.min().clamp(min=1) if 0 < wanted < len(x) else 1
    places = torch.nonzero(bits >= threshold).view(-1)
    surplus = len(places) - wanted
    if surplus > 0:
        ties = torch.nonzero(bits[places] == threshold).view(-1)
        chosen = torch.ones_like(places, dtype=torch.bool)
        chosen[ties[-surplus:]] = False
        places = places[chosen]
    return to_places(places), int(bits.max().item()) if len(bits) else 0
