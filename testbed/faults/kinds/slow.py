"""`slow`: roles compute more slowly: stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from testbed.faults.base import Fault, Hold, OfRoles
from testbed.types import Share


class Slow(OfRoles, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every computation of `roles` takes `factor` times as long.

    With `share` only so large a part of them, rounded up, is slow: which, is drawn from `seed`. With `spread` each
    role's factor is drawn anew every `hold_s` seconds: log-normal, `factor` its median and `spread` the standard
    deviation of its logarithm, and never below 1.
    """

    name: ClassVar[str] = "slow"
    factor: Annotated[float, msgspec.Meta(ge=1, le=1e6)]
    share: Share = 1.0
    spread: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.0
    hold_s: Hold = 1.0

    def on_roles(self, roles: Sequence[str]) -> Sequence[str]:
        named = super().on_roles(roles)
        if self.share == 1.0:
            return named
        count = ceil(self.share * len(named))
        chosen = np.random.default_rng(self.seed).choice(len(named), count, replace=False)
        return [named[k] for k in sorted(chosen)]

    @property
    def varies_s(self) -> float:
        return self.hold_s if self.spread else inf

    def varied(self, random: np.random.Generator) -> Fault:
        factor = self.factor * float(np.exp(self.spread * random.standard_normal()))
        return msgspec.structs.replace(self, factor=min(max(factor, 1.0), 1e6))

    @property
    def pace(self) -> float:
        return 1.0 / self.factor
