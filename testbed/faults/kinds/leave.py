"""`leave`: regions are switched off for a while, and keep what they had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from testbed.faults.base import Fault, Names, in_regions


class Leave(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """No role in `regions` does anything; back again, each goes on from where it was."""

    name: ClassVar[str] = "leave"
    target: ClassVar[str] = "regions"
    regions: Names

    def on_roles(self, roles: Sequence[str]) -> Sequence[str]:
        return in_regions(self.regions, roles)

    @property
    def pace(self) -> float:
        return 0.0
