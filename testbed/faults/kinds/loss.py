"""`loss`: links lose packets, and TCP slows down.

Neither fabric loses any: a link carries what TCP would get through it, by the limit of Mathis, Semke, Mahdavi and Ott,
"The macroscopic behavior of the TCP congestion avoidance algorithm" (CCR 27(3), 1997), equation 3:
MSS / RTT * C / sqrt(p) with C = sqrt(3/2), p being the share of packets that begin a run of losses, to which TCP reacts
once (section 2). It is Reno's; CUBIC, which Linux has, gets more where the product of rate and RTT is large.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Annotated, ClassVar

import msgspec

from testbed.faults.base import OfLinks, State
from testbed.message import SEGMENT_BYTES

C = sqrt(3 / 2)


class Loss(OfLinks, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`links` lose the share `p` of the packets, in runs of `burst` on average (Gilbert and Elliott's two states)."""

    name: ClassVar[str] = "loss"
    last: ClassVar[bool] = True
    p: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    burst: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 1.0

    def altered(self, link: State) -> State:
        if not link.rtt_ms:
            return link
        limit_mbit = SEGMENT_BYTES * 8e-6 / (link.rtt_ms * 1e-3) * C / sqrt(self.p / self.burst)
        return replace(link, goodput_mbit=min(link.goodput_mbit, max(limit_mbit, 1e-3)))
