"""Options and steps that `testbed profile` and `testbed trace` share: recordings, hosts and regions, where files go."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.errors import InputError
from testbed.wan import import_profile, reading
from testbed.wan.reading import UNITS_MBIT


def add_map(parser: argparse.ArgumentParser) -> None:
    """Which host stands in which region."""
    parser.add_argument("--map", type=_host, action="append", default=[], metavar="HOST=REGION", dest="hosts",
                        help="the region of a host (address or name); may be repeated")  # fmt: skip


def add_rate_column(parser: argparse.ArgumentParser) -> None:
    """Where a table's rates are, and their unit."""
    parser.add_argument("--unit", choices=list(UNITS_MBIT), help="of the rates, where the column's name does not tell")
    parser.add_argument(
        "--column", metavar="NAME", help="of the rates (the one that begins with goodput or throughput)"
    )


def add_output(parser: argparse.ArgumentParser, folder: str) -> None:
    """Where files go, and what they are called."""
    parser.add_argument("--name", required=True, help="of the files that are written")
    parser.add_argument("--out", type=Path, default=Path(folder), metavar="DIR",
                        help=f"where they go ({folder}/)")  # fmt: skip
    parser.add_argument("--replace", action="store_true", help="overwrite files of that name")


def _host(text: str) -> tuple[str, str]:
    host, equals, region = text.rpartition("=")
    if not (host and equals and reading.NAME.fullmatch(region)):
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST=REGION, e.g. 10.0.0.1=us-east-1")
    return host, region


def regions(hosts: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """The region of each host that `--map` names."""
    from testbed.wan.iperf3 import plain_host

    found: dict[str, str] = {}
    for host, region in hosts:
        if found.setdefault(plain_host(host), region) != region:
            raise InputError(f"--map {host}={region}: the host is {found[plain_host(host)]} already")
    return found


def tell_failed(failed: Sequence[import_profile.Failed]) -> None:
    """Say which tests were skipped."""
    if failed:
        tests = "1 failed test" if len(failed) == 1 else f"{len(failed)} failed tests"
        print(f"{tests} skipped; the first: {failed[0].where}: {failed[0].error}")
