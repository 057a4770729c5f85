"""`rate`: links are slower than the profile, or the trace, says: a brown-out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from testbed.faults.base import OfLinks, State

Goodput = Annotated[float, msgspec.Meta(ge=1e-3, le=1e6)]
Factor = Annotated[float, msgspec.Meta(ge=1e-4, le=1e4)]


class Rate(OfLinks, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`links` carry `factor` times their goodput, or `mbit` Mbit/s."""

    name: ClassVar[str] = "rate"
    factor: Factor | UnsetType = UNSET
    mbit: Goodput | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.factor is UNSET) == (self.mbit is UNSET):
            raise ValueError("factor: either factor or mbit says what the rate is")

    def altered(self, link: State) -> State:
        if not isinstance(self.mbit, UnsetType):
            return replace(link, goodput_mbit=self.mbit)
        assert not isinstance(self.factor, UnsetType)
        return replace(link, goodput_mbit=link.goodput_mbit * self.factor)
