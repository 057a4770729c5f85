"""`pause`: roles stand still, as a process that is stopped, or swaps, does."""

from __future__ import annotations

from typing import ClassVar

from testbed.faults.base import OfRoles


class Pause(OfRoles, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`roles` neither compute nor take what has arrived; they go on as they were."""

    name: ClassVar[str] = "pause"

    @property
    def pace(self) -> float:
        return 0.0
