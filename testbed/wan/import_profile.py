"""Profiles from measurements that others made: iperf3 logs, CSV tables of rates, tables of round-trip times.

`from_iperf3` and `from_csv` collect the rates, `read_rtt` the round trips, `assemble` makes the profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from testbed.errors import InputError, listed, nearest
from testbed.wan import iperf3, reading
from testbed.wan.iperf3 import Failed, Test
from testbed.wan.profile import Link, Origin, Pair, Profile, Spread, check_complete
from testbed.wan.reading import UNITS_MBIT, Row, Table

SPREAD_RUNS = 5  # repetitions from which percentiles say something
SRC, DST = ("src_region", "src"), ("dst_region", "dst")
UNIT_SUFFIX = re.compile(r"_([kmg]?)bit(_s)?")
NAMED = 3  # logs, in an error
MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass
class Rates:
    """What an import has found: per directed pair every run's goodput in Mbit/s, and RTTs in ms where there are any.

    `loaded_rtt_ms` is the lowest RTT seen by a transfer itself: not below the idle one. `logs` are the first files that
    a pair was measured in.
    """

    goodput_mbit: dict[Pair, list[float]] = field(default_factory=dict)
    rtt_ms: dict[Pair, float] = field(default_factory=dict)
    loaded_rtt_ms: dict[Pair, float] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)
    logs: dict[Pair, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Labels:
    """What an imported profile says about itself: its title and where rates and RTTs come from (date, method)."""

    title: str
    rate_source: str
    rtt_source: str = ""


def from_iperf3(paths: Iterable[Path], regions: Mapping[str, str]) -> Rates:
    """The rates of iperf3 logs; tests that failed are listed, not counted.

    Parameters
    ----------
    regions : host (address or name) -> region; a file called `<client>__<server>.json` (or `...__<server>__2.json`)
        needs none: its names are regions, or hosts of this map

    Raises
    ------
    InputError
        A log that cannot be, a host without a region, no test that succeeded.
    """
    rates = Rates()
    for path, test in read_tests(paths, rates.failed):
        pair = pair_of(path, test, regions)
        rates.goodput_mbit.setdefault(pair, []).append(test.goodput_mbit)
        rates.logs.setdefault(pair, path.name)
        if test.rtt_ms is not None:
            rates.loaded_rtt_ms[pair] = min(test.rtt_ms, rates.loaded_rtt_ms.get(pair, test.rtt_ms))
    return rates


def read_tests(paths: Iterable[Path], failed: list[Failed]) -> Iterator[tuple[Path, Test]]:
    """The tests of all logs that succeeded; the others are added to `failed`. At least one must succeed."""
    none = True
    for path in paths:
        for test in iperf3.read(path):
            if isinstance(test, Failed):
                failed.append(test)
            else:
                none = False
                yield path, test
    if none:
        why = f"; {failed[0].where}: {failed[0].error}" if failed else ""
        raise InputError(f"no iperf3 test that succeeded{why}")


def pair_of(path: Path, test: Test, regions: Mapping[str, str]) -> Pair:
    """The regions from and to which a test sent: by the file's name where it has one, else by the addresses."""
    named = path.stem.split("__")
    if len(named) > 1 and all(named[:2]):
        client, server = named[:2]
        src, dst = (client, server) if test.forward else (server, client)
        if regions:
            known = {**regions, **{region: region for region in regions.values()}}
            src, dst = (_region(host, known, test.where) for host in (src, dst))
    else:
        src, dst = (_region(host, regions, test.where) for host in (test.src, test.dst))
    for region in (src, dst):
        reading.region(region, f"{test.where}: region")
    if src == dst:
        raise InputError(f"{test.where}: a test inside {src}; a profile's LAN is set with --lan-mbit")
    return src, dst


def _region(host: str, regions: Mapping[str, str], where: str) -> str:
    if host not in regions:
        known = nearest(host, regions) if regions else ""
        raise InputError(f"{where}: no region for host '{host}'; add --map {host}=REGION{known}")
    return regions[host]


def from_csv(path: Path, unit: str | None, column: str | None) -> Rates:
    """The rates of a CSV table with the columns `src`, `dst` (or `src_region`, `dst_region`) and the rate.

    Parameters
    ----------
    unit : of the rate, a key of `reading.UNITS_MBIT`; None where the column's name tells (`goodput_mbit`)
    column : the rate's; None: the one whose name begins with "goodput" or "throughput"

    A column `rtt_ms` is read where there is one.
    """
    table = reading.read_table(path)
    src, dst = table.column(*SRC), table.column(*DST)
    column, to_mbit = rate_column(table, column, unit)
    rates = Rates()
    for row in table.rows:
        pair = row_pair(row, src, dst)
        if pair in rates.goodput_mbit:
            raise InputError(f"{row.where}: {pair[0]} to {pair[1]} stands there twice; delete one of the rows")
        rates.goodput_mbit[pair] = [reading.rate(row.number(column) * to_mbit, f"{row.where}: {column}")]
        if "rtt_ms" in table.columns:
            rates.rtt_ms[pair] = reading.rtt(row.number("rtt_ms"), f"{row.where}: rtt_ms")
    if not rates.goodput_mbit:
        raise InputError(f"{table.where}: no rows below the header")
    return rates


def rate_column(table: Table, column: str | None, unit: str | None) -> tuple[str, float]:
    """The name of a table's rate column and what makes Mbit/s of it."""
    if column is None:
        found = [name for name in table.columns if name.startswith(("goodput", "throughput"))]
        if len(found) != 1:
            raise InputError(
                f"{table.where}: which column is the rate? say --column; there are {listed(table.columns)}"
            )
        column = found[0]
    column = table.column(column)
    suffix = UNIT_SUFFIX.search(column)
    told = f"{suffix[1].upper().replace('K', 'k')}bit/s" if suffix else None
    if unit and told and unit != told:
        raise InputError(f"{table.where}: column {column} is in {told} by its name, but --unit says {unit}")
    if not (unit or told):
        raise InputError(f"{table.where}: column {column} has no unit; say --unit {'|'.join(UNITS_MBIT)}")
    return column, UNITS_MBIT[unit or told or ""]


def row_pair(row: Row, src: str, dst: str) -> Pair:
    """The directed pair of two different regions that a row is about."""
    pair = (row.region(src), row.region(dst))
    if pair[0] == pair[1]:
        raise InputError(f"{row.where}: a link from {pair[0]} to itself; a profile's LAN is set with --lan-mbit")
    return pair


def read_rtt(path: Path, unit: str = "ms") -> dict[Pair, float]:
    """A table of round-trip times, in ms: one pair a row (`src,dst,rtt_ms`), or a square with regions on both sides.

    Round trips inside a region are left out, and so are a square's empty cells.

    Parameters
    ----------
    unit : of the figures, a key of `MS`; the column of a long table must be named `rtt_<unit>`
    """
    table = reading.read_table(path)
    long = all(any(name in table.columns for name in names) for names in (SRC, DST))
    found = _long(table, unit) if long else _square(table)
    rtts: dict[Pair, float] = {}
    for row, pair, column in found:
        if pair in rtts:
            raise InputError(f"{row.where}: {pair[0]} to {pair[1]} stands there twice; delete one of them")
        value = reading.rtt(row.number(column) * MS[unit], f"{row.where}: {column}")
        if pair[0] != pair[1]:
            rtts[pair] = value
    if not rtts:
        raise InputError(f"{table.where}: no round-trip times below the header")
    return rtts


def _long(table: Table, unit: str) -> Iterator[tuple[Row, Pair, str]]:
    src, dst, column = table.column(*SRC), table.column(*DST), table.column(f"rtt_{unit}")
    for row in table.rows:
        yield row, (row.region(src), row.region(dst)), column


def _square(table: Table) -> Iterator[tuple[Row, Pair, str]]:
    head, *columns = table.columns
    regions = dict.fromkeys(columns)
    for name in regions:
        reading.region(name, f"{table.where}: column")
    for row in table.rows:
        src = row.region(head)
        if src not in regions:
            raise InputError(f"{row.where}: no column for region '{src}'{nearest(src, regions)}")
        for dst in regions:
            if row.text(dst):
                yield row, (src, dst), dst


def assemble(name: str, rates: Rates, rtt_ms: Mapping[Pair, float], labels: Labels, lan: Link | None) -> Profile:
    """The profile of what was measured: the median of each pair's runs, with percentiles where there are enough.

    Parameters
    ----------
    rtt_ms : a round trip counts for both directions; where this is empty the lowest RTT under load stands in,
        marked as assumed
    lan : None: 1,000 Mbit/s and 0.2 ms, marked as assumed

    Raises
    ------
    InputError
        A pair without a rate or a round trip.
    """
    _check_both_ways(name, rates)
    idle = bool(rtt_ms)
    figures = rtt_ms if idle else rates.loaded_rtt_ms
    links = {
        pair: Link(median(runs), _round_trip(figures, pair, idle)) for pair, runs in sorted(rates.goodput_mbit.items())
    }
    origin = Origin("rate+rtt") if idle else Origin("rate+loaded-rtt", frozenset({"rtt_ms"}))
    sources = {"rate": labels.rate_source}
    if idle:
        sources["rtt"] = labels.rtt_source
    else:
        sources["loaded-rtt"] = "the lowest smoothed RTT of the transfers themselves: not below the idle RTT"
    sources["lan" if lan else "assumed"] = "given at the import" if lan else "no measurement"
    return Profile(
        name=name,
        title=labels.title,
        regions=tuple(dict.fromkeys(region for pair in links for region in pair)),
        lan=lan or Link(1000.0, 0.2),
        pairs=links,
        sources=sources,
        origins=dict.fromkeys(links, origin),
        spread=_spreads(rates.goodput_mbit, list(links)),
        lan_source="lan" if lan else "assumed",
        lan_assumed=lan is None,
    )


def _check_both_ways(name: str, rates: Rates) -> None:
    """Raise InputError where a pair has no rate; of logs it says which of them measured which way."""
    try:
        check_complete(rates.goodput_mbit.keys(), f"profile {name}", "rate")
    except InputError as error:
        one_way = [(log, pair) for pair, log in rates.logs.items() if pair[::-1] not in rates.goodput_mbit]
        if not one_way:
            raise
        said = ", ".join(f"{log} measured {src} to {dst}" for log, (src, dst) in one_way[:NAMED])
        raise InputError(f"{error}; {said}; the way back needs a log of its own, e.g. of iperf3 -R") from None


def _round_trip(rtt_ms: Mapping[Pair, float], pair: Pair, idle: bool) -> float:
    for each in (pair, pair[::-1]):
        if each in rtt_ms:
            return rtt_ms[each]
    where = "the table of round trips has none" if idle else "no round-trip time"
    known = {region for each in rtt_ms for region in each}
    unknown = [region for region in pair if region not in known]
    hint = nearest(unknown[0], known) if unknown and known else ""
    raise InputError(f"{where} for {pair[0]} and {pair[1]}{hint}" + ("" if idle else "; give a table with --rtt"))


def _spreads(runs: Mapping[Pair, Sequence[float]], order: list[Pair]) -> dict[Pair, Spread]:
    spreads = {}
    for pair in order:
        if len(runs[pair]) >= SPREAD_RUNS:
            tenths = quantiles(runs[pair], n=10, method="inclusive")
            spreads[pair] = Spread(tenths[0], tenths[-1])
    return spreads
