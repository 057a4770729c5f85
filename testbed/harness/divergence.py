"""How far the regions' copies of a model have drifted apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from testbed.record.events import Diverged, Event

COPY = "full@"


def note(models: Mapping[str, torch.Tensor], time_s: float, step: int, record: Callable[[Event], None]) -> None:
    """Record the distance of each region's copy from their mean, of a system whose regions have copies.

    Parameters
    ----------
    models : flat weights by name, a region's copy as "full@us-east-1" (`System.models`)
    """
    copies = {name.removeprefix(COPY): weights for name, weights in models.items() if name.startswith(COPY)}
    if not copies:
        return
    mean = torch.stack(list(copies.values())).mean(0)
    norm = float(torch.linalg.vector_norm(mean))
    for region, weights in copies.items():
        distance = float(torch.linalg.vector_norm(weights - mean))
        record(Diverged(time_s=time_s, step=step, region=region, distance=distance, norm=norm))
