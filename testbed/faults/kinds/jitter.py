"""`jitter`: how long links take varies."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from testbed.faults.base import Fault, Hold
from testbed.faults.kinds.delay import Delay


class Jitter(Delay, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Each direction of `links` takes up to `ms` milliseconds more: how many, is drawn anew every `hold_s` seconds.

    All draws are uniform, and of each direction its own. What is sent meanwhile takes as long, so that nothing is
    overtaken but at a draw; netem's jitter, packet by packet, is not this one.
    """

    name: ClassVar[str] = "jitter"
    hold_s: Hold = 0.5

    @property
    def varies_s(self) -> float:
        return self.hold_s

    def varied(self, random: np.random.Generator) -> Fault:
        return msgspec.structs.replace(self, ms=self.ms * float(random.random()))
