"""`join`: regions that are not there from the beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from msgspec import UNSET, UnsetType

from testbed.faults.base import Fault, Names, in_regions


class Join(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """No role in `regions` does anything before `at_s`, when they begin with the model as it was at the start."""

    name: ClassVar[str] = "join"
    target: ClassVar[str] = "regions"
    regions: Names

    def __post_init__(self) -> None:
        for key in ("for_s", "every_s", "mtbf_s", "mttr_s"):
            if getattr(self, key) is not UNSET:
                raise ValueError(f"{key}: a region joins once, at at_s; `leave` is for one that goes again")
        super().__post_init__()

    def spans(self, number: int) -> Iterator[tuple[float, float]]:
        """The time before it, which is what is out of order."""
        assert not isinstance(self.at_s, UnsetType)
        yield 0.0, self.at_s

    def on_roles(self, roles: Sequence[str]) -> Sequence[str]:
        return in_regions(self.regions, roles)

    @property
    def pace(self) -> float:
        return 0.0
