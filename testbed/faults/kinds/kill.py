"""`kill`: the processes of roles end, and begin again where the fault has an end."""

from __future__ import annotations

from typing import ClassVar, Literal

from testbed.faults.base import OfRoles


class Kill(OfRoles, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`roles` are dead while it lasts; then they begin again as they were (`stale`), or as at the start (`fresh`)."""

    name: ClassVar[str] = "kill"
    restart: Literal["stale", "fresh"] = "stale"

    @property
    def kills(self) -> bool:
        return True

    @property
    def fresh(self) -> bool:
        return self.restart == "fresh"
