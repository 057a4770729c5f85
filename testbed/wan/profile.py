"""A WAN profile: measured goodput and round-trip time between regions, and the LAN inside them.

On disk a profile is `<name>.toml` (title, LAN, caps, sources) beside `<name>.csv` (one directed pair a row). Every
figure names its source; a figure nobody measured is marked `assumed`. `store.save` writes one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from testbed import shipped
from testbed.errors import InputError, listed, nearest
from testbed.plugins import Registry
from testbed.wan import reading
from testbed.wan.reading import Row

FOLDER = "topologies/profiles"
COLUMNS = ("src_region", "dst_region", "goodput_mbit", "rtt_ms", "source", "assumed")
# Either group may follow, in this order, for all rows; a pair's two cells are empty where not known (none: 0).
SPREAD_COLUMNS = ("goodput_p10_mbit", "goodput_p90_mbit")
IMPAIRMENT_COLUMNS = ("loss_percent", "jitter_ms")
FIGURES = ("goodput_mbit", "rtt_ms", *IMPAIRMENT_COLUMNS)  # what the column `assumed` can name
HINT = "a profile is a .toml and a .csv of the same name"

Pair = tuple[str, str]


@dataclass(frozen=True)
class Link:
    """One direction of a link.

    Parameters
    ----------
    goodput_mbit : TCP payload in 10^6 bit/s, as iperf3 reports it
    rtt_ms : round trip of the pair
    loss_percent : share of the packets that get lost, each for itself
    jitter_ms : how far the one-way delay strays to either side of half the round trip; packets stay in order
    """

    goodput_mbit: float
    rtt_ms: float
    loss_percent: float = 0.0
    jitter_ms: float = 0.0

    @property
    def delay_s(self) -> float:
        """One-way propagation delay in seconds: half the round trip."""
        return self.rtt_ms / 2e3

    @property
    def bytes_per_s(self) -> float:
        """Payload bytes per second."""
        return self.goodput_mbit * 1e6 / 8

    @property
    def impaired(self) -> bool:
        """Whether it loses packets or its delay strays: what TCP makes of its rate is then no longer the profile's."""
        return self.loss_percent > 0 or self.jitter_ms > 0

    def scaled(self, factor: float) -> Link:
        """The same slowed down `factor` times."""
        return Link(self.goodput_mbit / factor, self.rtt_ms * factor, self.loss_percent, self.jitter_ms * factor)


@dataclass(frozen=True)
class Spread:
    """The 10th and 90th percentile of a pair's goodput over repeated measurements, in Mbit/s."""

    p10_mbit: float
    p90_mbit: float


@dataclass(frozen=True)
class Origin:
    """Where a pair's figures come from: keys of the profile's sources, joined by "+", and which figures are assumed."""

    source: str
    assumed: frozenset[str] = frozenset()  # of FIGURES


@dataclass(frozen=True)
class Cap:
    """What all WAN links of a region may carry together, in Mbit/s of goodput; None: nothing but the pairs' own rates.

    `egress_mbit` bounds the sum over the links that leave the region, `ingress_mbit` that over those that enter it.
    Links inside the region (its LAN) do not count.
    """

    egress_mbit: float | None = None
    ingress_mbit: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Profile:
    """Goodput and RTT for every directed pair of `regions`, and the LAN link that each host hangs on.

    `caps` holds the regions that have one; a fabric must honour them or refuse a profile that has any. `measured` says
    in a line how the rates came about, `use` for which question they are the right ones.
    """

    name: str
    title: str
    regions: tuple[str, ...]
    lan: Link
    pairs: dict[Pair, Link]
    sources: dict[str, str] = field(default_factory=dict)  # key used in the CSV -> citation, date, licence
    origins: dict[Pair, Origin] = field(default_factory=dict)
    spread: dict[Pair, Spread] = field(default_factory=dict)  # the pairs for which it is known
    caps: dict[str, Cap] = field(default_factory=dict)
    notes: str = ""
    lan_source: str = ""
    lan_assumed: bool = False
    measured: str = ""
    use: str = ""

    @property
    def assumed(self) -> frozenset[Pair]:
        """The pairs with a figure nobody measured."""
        return frozenset(pair for pair, origin in self.origins.items() if origin.assumed)

    def link(self, src: str, dst: str) -> Link:
        """The WAN link from `src` to `dst`.

        Raises
        ------
        InputError
            The profile has no such pair.
        """
        try:
            return self.pairs[src, dst]
        except KeyError:
            raise InputError(f"profile {self.name}: no link from {src} to {dst}; add it to the CSV") from None

    def path_mbit(self, src: str, dst: str) -> float:
        """What a connection from one region to another, or inside one, gets that has all links on its way to itself."""
        if src == dst:
            return self.lan.goodput_mbit
        out = self.caps[src].egress_mbit if src in self.caps else None
        into = self.caps[dst].ingress_mbit if dst in self.caps else None
        rates = (self.link(src, dst).goodput_mbit, self.lan.goodput_mbit, out, into)
        return min(rate for rate in rates if rate is not None)

    def altered(self, lan_mbit: float | None = None, wan_factor: float = 1.0, rtt_factor: float = 1.0) -> Profile:
        """What if the LAN's links had this goodput, the WAN's links and caps so many times theirs, and their RTT?"""

        def alter(link: Link) -> Link:
            return replace(link, goodput_mbit=link.goodput_mbit * wan_factor, rtt_ms=link.rtt_ms * rtt_factor)

        def lift(cap: float | None) -> float | None:
            return None if cap is None else cap * wan_factor

        return replace(
            self,
            lan=self.lan if lan_mbit is None else replace(self.lan, goodput_mbit=lan_mbit),
            pairs={pair: alter(link) for pair, link in self.pairs.items()},
            caps={
                region: replace(cap, egress_mbit=lift(cap.egress_mbit), ingress_mbit=lift(cap.ingress_mbit))
                for region, cap in self.caps.items()
            },
        )

    def scaled(self, factor: float) -> Profile:
        """The same network slowed down `factor` times: rates divided, delays multiplied (time dilation)."""

        def lower(cap: float | None) -> float | None:
            return None if cap is None else cap / factor

        return replace(
            self,
            lan=self.lan.scaled(factor),
            pairs={pair: link.scaled(factor) for pair, link in self.pairs.items()},
            spread={pair: Spread(s.p10_mbit / factor, s.p90_mbit / factor) for pair, s in self.spread.items()},
            caps={
                name: replace(cap, egress_mbit=lower(cap.egress_mbit), ingress_mbit=lower(cap.ingress_mbit))
                for name, cap in self.caps.items()
            },
        )


class _Lan(msgspec.Struct, forbid_unknown_fields=True):
    goodput_mbit: float
    rtt_ms: float
    source: str = ""
    assumed: bool = False


class _Cap(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    egress_mbit: float | None = None
    ingress_mbit: float | None = None


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    lan: _Lan
    sources: dict[str, str]
    notes: str = ""
    measured: str = ""
    use: str = ""
    caps: dict[str, _Cap] = {}


PROFILES: Registry[Profile] = Registry("profile")
"""Profiles that plug-ins have added; the testbed's own are files."""


def available() -> list[str]:
    """Names of the profiles that `load` takes."""
    return sorted({*shipped.names(FOLDER, ".toml"), *PROFILES})


def load(name: str) -> Profile:
    """Read a profile by name, or by the path of its TOML file.

    Raises
    ------
    InputError
        No such profile, or a figure in it that cannot be: the message names file and line.
    """
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name) if name.endswith(".toml") else shipped.find(FOLDER, f"{name}.toml")
    if path is None or not shipped.is_file(path):
        raise InputError(f"no profile '{name}'{nearest(name, available())}; or give the path of its .toml file")
    header = reading.read_toml(path, _Header, HINT, any_text=True)
    lan = Link(
        reading.rate(header.lan.goodput_mbit, f"{path}: lan.goodput_mbit"),
        reading.rtt(header.lan.rtt_ms, f"{path}: lan.rtt_ms"),
    )
    if header.lan.source:
        _check_source(header.lan.source, header.sources, f"{path}: lan.source")
    pairs, origins, spread = _read_pairs(path.with_suffix(".csv"), header.sources)
    regions = tuple(dict.fromkeys(region for pair in pairs for region in pair))
    caps = {region: _cap(region, cap, regions, header, path) for region, cap in header.caps.items()}
    return Profile(
        name=path.stem,
        title=header.title,
        regions=regions,
        lan=lan,
        pairs=pairs,
        sources=header.sources,
        origins=origins,
        spread=spread,
        caps=caps,
        notes=header.notes,
        lan_source=header.lan.source,
        lan_assumed=header.lan.assumed,
        measured=header.measured,
        use=header.use,
    )


def check_complete(pairs: Collection[Pair], where: str, what: str = "row") -> None:
    """Raise unless every directed pair of the regions that occur in `pairs` is there."""
    if not pairs:
        raise InputError(f"{where}: no {what}s; a profile needs at least one pair of regions")
    regions = tuple(dict.fromkeys(region for pair in pairs for region in pair))
    missing = len(regions) * (len(regions) - 1) - len(pairs)  # no pair is of a region with itself
    if missing:
        a, b = next((a, b) for a in regions for b in regions if a != b and (a, b) not in pairs)
        raise InputError(f"{where}: no {what} for {a} to {b}" + (f" and {missing - 1:,} more" if missing > 1 else ""))


def _cap(region: str, cap: _Cap, regions: tuple[str, ...], header: _Header, path: Path) -> Cap:
    where = f"{path}: caps.{region}"
    if region not in regions:
        raise InputError(f"{where}: no region '{region}' in the .csv{nearest(region, regions)}")
    _check_source(cap.source, header.sources, f"{where}.source")
    if cap.egress_mbit is None and cap.ingress_mbit is None:
        raise InputError(f"{where} caps nothing; set egress_mbit, ingress_mbit or both")
    for key in ("egress_mbit", "ingress_mbit"):
        if (value := getattr(cap, key)) is not None:
            reading.rate(value, f"{where}.{key}")
    return Cap(cap.egress_mbit, cap.ingress_mbit, cap.source)


def _read_pairs(path: Path, sources: dict[str, str]) -> tuple[dict[Pair, Link], dict[Pair, Origin], dict[Pair, Spread]]:
    pairs: dict[Pair, Link] = {}
    origins: dict[Pair, Origin] = {}
    spread: dict[Pair, Spread] = {}
    table = reading.read_table(path, HINT)
    groups = [group for group in (SPREAD_COLUMNS, IMPAIRMENT_COLUMNS) if set(group) & set(table.columns)]
    if table.columns != (wanted := sum(groups, COLUMNS)):
        raise InputError(f"{table.where}: columns must be {','.join(wanted)}, found {listed(table.columns)}")
    for row in table.rows:
        if not row.text("src_region") or not row.text("dst_region"):
            raise InputError(f"{row.where}: a row needs {', '.join(COLUMNS)}; a region is missing")
        pair = (row.region("src_region"), row.region("dst_region"))
        if pair in pairs:
            raise InputError(f"{row.where}: {pair[0]} to {pair[1]} stands there twice; delete one of the rows")
        if pair[0] == pair[1]:
            raise InputError(f"{row.where}: a link from {pair[0]} to itself; the LAN is set in the .toml")
        _check_source(row.text("source"), sources, f"{row.where}: source")
        origins[pair] = Origin(row.text("source"), _assumed(row))
        pairs[pair] = Link(
            reading.rate(row.number("goodput_mbit"), f"{row.where}: goodput_mbit"),
            reading.rtt(row.number("rtt_ms"), f"{row.where}: rtt_ms"),
        )
        if IMPAIRMENT_COLUMNS in groups:
            pairs[pair] = _impaired(row, pairs[pair])
        if SPREAD_COLUMNS in groups and (found := _spread(row)) is not None:
            spread[pair] = found
    check_complete(pairs, str(path))
    return pairs, origins, spread


def _check_source(source: str, sources: dict[str, str], where: str) -> None:
    for key in source.split("+"):
        if key not in sources:
            raise InputError(f"{where} '{key}' is not in [sources] of the .toml")


def _assumed(row: Row) -> frozenset[str]:
    names = frozenset(row.text("assumed").split("+")) if row.text("assumed") else frozenset()
    for name in names - set(FIGURES):
        raise InputError(f"{row.where}: assumed is '{name}'; it names figures: {' or '.join(FIGURES)}")
    return names


def _spread(row: Row) -> Spread | None:
    if not any(row.text(column) for column in SPREAD_COLUMNS):
        return None
    low, high = (reading.rate(row.number(column), f"{row.where}: {column}") for column in SPREAD_COLUMNS)
    if low > high:
        raise InputError(f"{row.where}: {SPREAD_COLUMNS[0]} is {low:g}, above {SPREAD_COLUMNS[1]}, {high:g}")
    return Spread(low, high)


def _impaired(row: Row, link: Link) -> Link:
    """The link with the row's loss and jitter; an empty cell is none."""
    loss, jitter = (row.number(column) if row.text(column) else 0.0 for column in IMPAIRMENT_COLUMNS)
    if not 0 <= loss < 100:
        raise InputError(f"{row.where}: loss_percent is {loss:g}; it must be at least 0 and below 100")
    if not 0 <= jitter <= link.rtt_ms / 2:
        limit = f"at least 0 and at most the one-way delay, {link.rtt_ms / 2:g} ms"
        raise InputError(f"{row.where}: jitter_ms is {jitter:g}; it must be {limit}")
    return replace(link, loss_percent=loss, jitter_ms=jitter)
