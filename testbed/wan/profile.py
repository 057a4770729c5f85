"""A WAN profile: measured goodput and round-trip time between regions, and the LAN inside them.

On disk a profile is `<name>.toml` (title, LAN, sources) beside `<name>.csv` (one directed pair a row). Every
figure names its source; a figure nobody measured is marked `assumed`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from testbed.errors import InputError, nearest

PROFILES = Path(__file__).resolve().parents[2] / "topologies" / "profiles"
COLUMNS = ("src_region", "dst_region", "goodput_mbit", "rtt_ms", "source", "assumed")


@dataclass(frozen=True)
class Link:
    """One direction of a link.

    `goodput_mbit` is TCP payload in 10^6 bit/s, as iperf3 reports it; `rtt_ms` is the round trip of the pair.
    """

    goodput_mbit: float
    rtt_ms: float

    @property
    def delay_s(self) -> float:
        """One-way propagation delay in seconds: half the round trip."""
        return self.rtt_ms / 2e3

    @property
    def bytes_per_s(self) -> float:
        """Payload bytes per second."""
        return self.goodput_mbit * 1e6 / 8


@dataclass(frozen=True)
class Profile:
    """Goodput and RTT for every directed pair of `regions`, and the LAN link that each host hangs on."""

    name: str
    title: str
    regions: tuple[str, ...]
    lan: Link
    pairs: dict[tuple[str, str], Link]
    sources: dict[str, str] = field(default_factory=dict)  # key used in the CSV -> citation, date, licence
    assumed: frozenset[tuple[str, str]] = frozenset()  # pairs with a figure nobody measured

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

    def scaled(self, factor: float) -> Profile:
        """The same network slowed down `factor` times: rates divided, delays multiplied (time dilation)."""

        def slow(link: Link) -> Link:
            return Link(link.goodput_mbit / factor, link.rtt_ms * factor)

        return replace(self, lan=slow(self.lan), pairs={pair: slow(link) for pair, link in self.pairs.items()})


class _Lan(msgspec.Struct, forbid_unknown_fields=True):
    goodput_mbit: float
    rtt_ms: float
    source: str = ""
    assumed: bool = False


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    lan: _Lan
    sources: dict[str, str]
    notes: str = ""


def available(folder: Path = PROFILES) -> list[str]:
    """Names of the profiles in `folder`."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load(name: str, folder: Path = PROFILES) -> Profile:
    """Read a profile by name, or by the path of its TOML file.

    Raises
    ------
    InputError
        No such profile, or a figure in it that cannot be: the message names file and line.
    """
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"no profile '{name}'{nearest(name, available(folder))}")
    try:
        header = msgspec.toml.decode(path.read_bytes(), type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    table = path.with_suffix(".csv")
    lan = Link(_positive(header.lan.goodput_mbit, f"{path}: lan.goodput_mbit"), header.lan.rtt_ms)
    pairs, assumed = _read_pairs(table, header.sources)
    regions = tuple(dict.fromkeys(region for pair in pairs for region in pair))
    missing = [f"{a} to {b}" for a in regions for b in regions if a != b and (a, b) not in pairs]
    if missing:
        raise InputError(f"{table}: no row for {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    return Profile(path.stem, header.title, regions, lan, pairs, header.sources, frozenset(assumed))


def _read_pairs(path: Path, sources: dict[str, str]) -> tuple[dict[tuple[str, str], Link], set[tuple[str, str]]]:
    pairs: dict[tuple[str, str], Link] = {}
    assumed: set[tuple[str, str]] = set()
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; a profile is a .toml and a .csv of the same name") from None
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise InputError(f"{path}:1: columns must be {','.join(COLUMNS)}, found {','.join(reader.fieldnames or ())}")
    for row in reader:
        where = f"{path}:{reader.line_num}"
        pair = (row["src_region"], row["dst_region"])
        if pair in pairs:
            raise InputError(f"{where}: {pair[0]} to {pair[1]} stands there twice; delete one of the rows")
        if pair[0] == pair[1]:
            raise InputError(f"{where}: a link from {pair[0]} to itself; the LAN is set in the .toml")
        for source in (row["source"] or "").split("+"):
            if source not in sources:
                raise InputError(f"{where}: source '{source}' is not in [sources] of the .toml")
        rate = _positive(_number(row["goodput_mbit"], f"{where}: goodput_mbit"), f"{where}: goodput_mbit")
        rtt = _number(row["rtt_ms"], f"{where}: rtt_ms")
        if rtt < 0:
            raise InputError(f"{where}: rtt_ms is {rtt:g}; it must not be negative")
        pairs[pair] = Link(rate, rtt)
        if row["assumed"]:
            assumed.add(pair)
    if not pairs:
        raise InputError(f"{path}: no rows; a profile needs at least one pair of regions")
    return pairs, assumed


def _number(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"{where} is '{text}'; it must be a number") from None


def _positive(value: float, where: str) -> float:
    if not 0 < value < float("inf"):
        raise InputError(f"{where} is {value:g}; a rate must be above 0")
    return value
