"""A fault: when it is in force, and what is otherwise meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from testbed.errors import InputError, nearest
from testbed.plugins import Registry
from testbed.wan.plan import region_of
from testbed.wan.profile import Pair

LONGEST_S = 1e8  # three years
Time = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Duration = Annotated[float, msgspec.Meta(ge=1e-3, le=LONGEST_S)]
Hold = Annotated[float, msgspec.Meta(ge=0.05, le=LONGEST_S)]
Names = Annotated[list[str], msgspec.Meta(min_length=1)]
FAULTS: Registry[type[Fault]] = Registry("kind of fault", "testbed.faults.kinds")


@dataclass(frozen=True)
class State:
    """How a directed WAN link is at a moment: what TCP delivers over it, its round trip, whether it loses all."""

    goodput_mbit: float
    rtt_ms: float
    cut: bool = False


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of `[[faults]]`; subclass it in one file, set `name`, and it can be named.

    Times are seconds on the run's clock.

    Parameters
    ----------
    kind : the subclass's `name`
    at_s, for_s, every_s : it begins at `at_s`, lasts `for_s` (to the end of the run where that is not given), and
        comes again `every_s` after it began
    mtbf_s, mttr_s, seed : in the place of those: it comes at random, after times whose mean is `mtbf_s` (mean time
        between failures, from the end of one to the next), and lasts for times whose mean is `mttr_s` (mean time to
        repair); both are exponentially distributed and drawn from `seed`

    Attributes
    ----------
    target : the field that takes the words of a sentence (`sentence.read`) that are no times
    momentary : whether it happens at a moment: it has no `for_s` and no `mttr_s`, and is over when it begins
    resets : whether the connections that it concerns are reset then
    last : whether it goes by what all other faults have left of a link
    """

    name: ClassVar[str] = ""
    target: ClassVar[str] = ""
    momentary: ClassVar[bool] = False
    resets: ClassVar[bool] = False
    last: ClassVar[bool] = False

    kind: str
    at_s: Time | UnsetType = UNSET
    for_s: Duration | UnsetType = UNSET
    every_s: Duration | UnsetType = UNSET
    mtbf_s: Duration | UnsetType = UNSET
    mttr_s: Duration | UnsetType = UNSET
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            FAULTS.add(cls.name, cls, cls.__module__)

    def __post_init__(self) -> None:
        given = {key: getattr(self, key) for key in ("at_s", "for_s", "every_s", "mtbf_s", "mttr_s")}
        has = {key for key, value in given.items() if value is not UNSET}
        if self.momentary and (lasting := sorted(has & {"for_s", "mttr_s"})):
            raise ValueError(f"{lasting[0]}: a {self.name} happens at a moment, it does not last")
        if not has & {"at_s", "mtbf_s"}:
            random = "mtbf_s" if self.momentary else "mtbf_s and mttr_s"
            raise ValueError(f"at_s: needed, when it begins (or {random}, for random times)")
        if "mtbf_s" in has and (beside := sorted(has - {"mtbf_s", "mttr_s"})):
            raise ValueError(f"{beside[0]}: not beside mtbf_s, which makes the times random")
        if self.momentary:
            return
        if ("mtbf_s" in has) != ("mttr_s" in has):
            raise ValueError("mttr_s: goes together with mtbf_s")
        if "every_s" in has and not ("for_s" in has and given["for_s"] < given["every_s"]):
            raise ValueError("every_s: needs a for_s that is shorter")

    def spans(self, number: int) -> Iterator[tuple[float, float]]:
        """When it begins and when it is over, again and again; `number` is its place among the run's faults."""
        if not isinstance(self.at_s, UnsetType):
            lasts_s = 0.0 if self.momentary else inf if isinstance(self.for_s, UnsetType) else self.for_s
            if isinstance(self.every_s, UnsetType):
                yield self.at_s, self.at_s + lasts_s
                return
            time = 0
            while True:
                begins_s = self.at_s + time * self.every_s
                yield begins_s, begins_s + lasts_s
                time += 1
        assert not isinstance(self.mtbf_s, UnsetType)
        mean_s = 0.0 if isinstance(self.mttr_s, UnsetType) else self.mttr_s
        random = np.random.default_rng((self.seed, number))
        over_s = 0.0
        while True:
            begins_s = over_s + float(random.exponential(self.mtbf_s))
            over_s = begins_s + float(random.exponential(mean_s))
            yield begins_s, over_s

    # What a kind says

    def on_links(self, wan: Collection[Pair]) -> Sequence[Pair]:
        """Which of the WAN's directed links it alters.

        Raises
        ------
        InputError
            It names one that is not there.
        """
        return ()

    def on_connections(self, roles: Sequence[str]) -> Sequence[Pair]:
        """Between which roles, from one to the other, it alters what the network does, or resets the connection.

        Raises as `on_links` does.
        """
        return ()

    def altered(self, link: State) -> State:
        """How such a link or connection is while it lasts, which would be `link` without."""
        return link

    def on_roles(self, roles: Sequence[str]) -> Sequence[str]:
        """Which roles of a run it slows or stops. Raises InputError as `on_links` does."""
        return ()

    @property
    def pace(self) -> float:
        """How fast those are while it lasts: 1 as ever, 0 not at all."""
        return 1.0

    @property
    def kills(self) -> bool:
        """Whether those are dead while it lasts."""
        return False

    @property
    def fresh(self) -> bool:
        """Whether they then begin with nothing that they remembered."""
        return False

    @property
    def varies_s(self) -> float:
        """How long it stays as it is for one link or role before it is drawn anew (`varied`); infinity for always."""
        return inf

    def varied(self, random: np.random.Generator) -> Fault:
        """The fault as it is for one link or role for the next `varies_s` seconds."""
        return self

    @property
    def about(self) -> str:
        """What it is, in a few words, for tables and pictures."""
        return " ".join([self.name, *getattr(self, self.target, ())])


class OfLinks(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault of `links`, as `links_named` reads them; a kind says with `altered` what is otherwise."""

    target: ClassVar[str] = "links"
    links: Names

    def on_links(self, wan: Collection[Pair]) -> Sequence[Pair]:
        return links_named(self.links, wan)


class OfRoles(Fault, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault of `roles`, as `roles_named` reads them; a kind says with `pace` how fast they are."""

    target: ClassVar[str] = "roles"
    roles: Names

    def on_roles(self, roles: Sequence[str]) -> Sequence[str]:
        return roles_named(self.roles, roles)


def links_named(names: Sequence[str], wan: Collection[Pair]) -> list[Pair]:
    """The directed links that names mean: "a>b" one way, "a=b" both ways, a region's name all of its, "*" every one.

    Raises
    ------
    InputError
        One means none.
    """
    found: dict[Pair, None] = {}
    for name in names:
        one, sign, other = next(((a, s, b) for s in ">=" for a, s_, b in [name.partition(s)] if s_), (name, "", ""))
        if sign:
            pairs = [(one, other)] if sign == ">" else [(one, other), (other, one)]
        else:
            pairs = [pair for pair in wan if name in ("*", *pair)]
        if not pairs or any(pair not in wan for pair in pairs):
            regions = list(dict.fromkeys(region for pair in wan for region in pair))
            wrong = next((part for part in (one, other) if part and part != "*" and part not in regions), one)
            raise InputError(f"no link '{name}' in this run{nearest(wrong, regions)}; a>b is one way, a=b both ways")
        found |= dict.fromkeys(pairs)
    return list(found)


def connections_named(names: Sequence[str], roles: Sequence[str]) -> list[Pair]:
    """The directed connections that names mean: "a/lps>b/gs" one way, "a/lps=b/gs" both; roles as in `roles_named`.

    Raises
    ------
    InputError
        One is no pair, or names a role that is not there.
    """
    found: dict[Pair, None] = {}
    for name in names:
        sign = next((sign for sign in ">=" if sign in name), "")
        if not sign:
            raise InputError(
                f"'{name}' is no connection; one is e.g. {roles[0]}={roles[-1]}, or {roles[0]}>{roles[-1]}"
            )
        one, other = (roles_named([part], roles) for part in name.split(sign, 1))
        pairs = [(a, b) for a in one for b in other if a != b]
        found |= dict.fromkeys(pairs if sign == ">" else [*pairs, *((b, a) for a, b in pairs)])
    return list(found)


def known_regions(regions: Sequence[str], known: Sequence[str]) -> None:
    """Raise InputError where one of `regions` is not in the run."""
    if unknown := [region for region in regions if region not in known]:
        raise InputError(f"no region '{unknown[0]}' in this run{nearest(unknown[0], list(dict.fromkeys(known)))}")


def in_regions(regions: Sequence[str], roles: Sequence[str]) -> list[str]:
    """The roles in some regions; raises as `known_regions` does."""
    known_regions(regions, [region_of(role) for role in roles])
    return [role for role in roles if region_of(role) in regions]


def roles_named(names: Sequence[str], roles: Sequence[str]) -> list[str]:
    """The roles that names mean: "us-east-1/w0", a region's name for all in it, or a pattern such as "*/w0".

    Raises
    ------
    InputError
        One means none.
    """
    found: dict[str, None] = {}
    for name in names:
        matching = [role for role in roles if name == region_of(role) or fnmatchcase(role, name)]
        if not matching:
            known = [*dict.fromkeys(map(region_of, roles)), *roles]
            raise InputError(f"no role '{name}' in this run{nearest(name, known)}")
        found |= dict.fromkeys(matching)
    return list(found)
