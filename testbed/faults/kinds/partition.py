"""`partition`: regions reach each other and nobody else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from testbed.errors import InputError
from testbed.faults.base import Fault, Names, State, known_regions
from testbed.wan.profile import Pair


class Partition(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every link between one of `regions` and one that is not among them is cut, both ways."""

    name: ClassVar[str] = "partition"
    target: ClassVar[str] = "regions"
    regions: Names

    def on_links(self, wan: Collection[Pair]) -> Sequence[Pair]:
        known_regions(self.regions, [region for pair in wan for region in pair])
        found = [(a, b) for a, b in wan if (a in self.regions) != (b in self.regions)]
        if not found:
            raise InputError("these are all regions of this run; leave at least one out")
        return found

    def altered(self, link: State) -> State:
        return replace(link, cut=True)
