"""`cut`: links lose all that they are given, as if a cable were."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from testbed.faults.base import OfLinks, State


class Cut(OfLinks, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`links` carry nothing; what is on its way still arrives."""

    name: ClassVar[str] = "cut"

    def altered(self, link: State) -> State:
        return replace(link, cut=True)
