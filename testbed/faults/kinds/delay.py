"""`delay`: links take longer than the profile, or the trace, says."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import msgspec

from testbed.faults.base import OfLinks, State


class Delay(OfLinks, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Each direction of `links` takes `ms` milliseconds more."""

    name: ClassVar[str] = "delay"
    ms: Annotated[float, msgspec.Meta(gt=0, le=10_000)]

    def altered(self, link: State) -> State:
        return replace(link, rtt_ms=link.rtt_ms + 2 * self.ms)
