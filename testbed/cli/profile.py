"""The sub-command `testbed profile`: list, show, check, import and measure WAN profiles."""

from __future__ import annotations

import argparse
import shutil
from datetime import UTC, datetime
from pathlib import Path

from testbed.cli.options import Commands
from testbed.cli.recordings import add_map, add_output, add_rate_column, regions, tell_failed
from testbed.errors import InputError
from testbed.wan import import_profile, profile, reading, store
from testbed.wan.import_profile import MS, Labels, Rates
from testbed.wan.profile import Link, Profile

PIPE_WIDTH = 160  # columns of a table that goes to a file or a pipe

PROFILE_EXAMPLES = """\
examples:
  testbed profile list
  testbed profile show wanify-8 --png wanify-8.png
  testbed profile import iperf3 us-east-1__eu-west-1.json eu-west-1__us-east-1.json --rtt rtt.csv --name mine
  testbed profile import iperf3 *.json --map 10.0.0.1=us-east-1 --map 10.0.0.2=eu-west-1 --rtt rtt.csv --name mine
  testbed profile import csv rates.csv --unit Gbit/s --rtt rtt.csv --name mine
  testbed profile measure hosts.toml --name mine
"""
MEASURE_EXAMPLE = """\
HOSTS.toml lists one host per region:
  duration_s = 10          # of each test; also omit_s = 1, streams = 1, port = 5201
  [[hosts]]
  region = "us-east-1"
  address = "10.0.0.1"     # where the other hosts reach it
  command = ["ssh", "-o", "BatchMode=yes", "ubuntu@54.1.2.3"]   # default: ssh -o BatchMode=yes ADDRESS
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    profiles = commands.group("profile", "list, show, check, import and measure WAN profiles", PROFILE_EXAMPLES)
    profiles.add("list", _list, "list the profiles, how each was measured and what it is for")
    show = profiles.add("show", _show, "print a profile's matrix of goodput and RTT")
    show.add_argument("name", help="a profile: its name, or its TOML file")
    show.add_argument("--png", type=Path, metavar="FILE", help="also draw it as a heat map")
    check = profiles.add("check", _check, "check a profile's files strictly")
    check.add_argument("file", help="a profile: its TOML file, or its name")
    imports = profiles.group("import", "make a profile of measurements", PROFILE_EXAMPLES)
    _add_profile_imports(imports)
    measure = profiles.add("measure", _measure, "measure a profile with iperf3 over ssh", MEASURE_EXAMPLE)
    measure.add_argument("hosts", type=Path, metavar="HOSTS.toml")
    measure.add_argument("--logs", type=Path, metavar="DIR", help="keep iperf3's logs here")
    _add_profile_output(measure)


def _add_profile_imports(imports: Commands) -> None:
    logs = imports.add("iperf3", _import_iperf3, "make a profile of iperf3's logs (iperf3 -J)")
    logs.add_argument(
        "files", type=Path, nargs="+", metavar="LOG.json", help="named <client>__<server>.json, or see --map"
    )
    add_map(logs)
    table = imports.add("csv", _import_csv, "make a profile of a table with the columns src, dst and goodput")
    table.add_argument("file", type=Path, metavar="RATES.csv")
    add_rate_column(table)
    for parser in (logs, table):
        parser.add_argument(
            "--rtt", type=Path, metavar="RTT.csv", help="round trips: src,dst,rtt_ms or a square matrix"
        )
        parser.add_argument("--rtt-unit", choices=list(MS), default="ms", help="of the round trips (ms)")
        parser.add_argument("--source", default="", help="where the rates come from: who, when, how, licence")
        parser.add_argument("--rtt-source", default="", help="the same for the round trips")
        _add_profile_output(parser)


def _add_profile_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--title", default="", help="what the profile is, in a line")
    parser.add_argument("--lan-mbit", type=float, metavar="MBIT", help="goodput of the LAN (assumed: 1000)")
    parser.add_argument("--lan-rtt-ms", type=float, default=0.2, metavar="MS", help="RTT of that LAN (0.2)")
    add_output(parser, profile.FOLDER)


def _list(_: argparse.Namespace) -> int:
    found = [profile.load(name) for name in profile.available()]
    width = max((len(each.name) for each in found), default=0)
    print(f"{'profile':<{width}}  regions  title")
    for each in found:
        print(f"{each.name:<{width}}  {len(each.regions):>7}  {each.title}")
        print("".join(f"{'':{width}}           {line}\n" for line in _about(each)), end="")
    return 0


def _about(it: Profile) -> list[str]:
    """How it was measured and what it is for, as far as it says so."""
    said = {"measured": it.measured, "for": it.use}
    return [f"{name}: {text}" for name, text in said.items() if text]


def _show(options: argparse.Namespace) -> int:
    from testbed.report.pictures import network_map

    shown = profile.load(options.name)
    if options.png:
        _make_png(shown, options.png)
    width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    print(f"{shown.name}: {shown.title}\n")
    impaired = any(link.impaired for link in shown.pairs.values())
    for figures in (network_map.GOODPUT, network_map.RTT, *(network_map.IMPAIRMENTS if impaired else ())):
        print("\n".join(network_map.lines(shown, figures, width)) + "\n")
    if shown.spread:
        print("\n".join(network_map.spread_lines(shown, width)) + "\n")
    assumed = " (assumed)" if shown.lan_assumed else ""
    print(f"LAN: {shown.lan.goodput_mbit:g} Mbit/s, {shown.lan.rtt_ms:g} ms{assumed}")
    for region, cap in shown.caps.items():
        limits = {"out": cap.egress_mbit, "in": cap.ingress_mbit}
        print(f"cap of {region}: " + ", ".join(f"{way} {mbit:g} Mbit/s" for way, mbit in limits.items() if mbit))
    if shown.assumed:
        print(f"{network_map.ASSUMED} assumed: nobody measured it")
    print("".join(f"{line}\n" for line in _about(shown)) + "sources:")
    for key, citation in shown.sources.items():
        print(f"  {key}: {citation}")
    if shown.notes:
        print(f"\n{shown.notes.strip()}")
    if options.png:
        print(f"\nwritten: {options.png}")
    return 0


def _make_png(shown: Profile, path: Path) -> None:
    from testbed.report.pictures.network_map import draw

    try:
        draw(shown, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _check(options: argparse.Namespace) -> int:
    found = profile.load(options.file)
    spread = f", p10 and p90 of {len(found.spread)}" if found.spread else ""
    assumed = f", {len(found.assumed)} with an assumed figure" if found.assumed else ""
    print(f"ok: {found.name}: {len(found.regions)} regions, {len(found.pairs)} directed pairs{spread}{assumed}")
    return 0


def _import_iperf3(options: argparse.Namespace) -> int:
    rates = import_profile.from_iperf3(options.files, regions(options.hosts))
    runs = sum(map(len, rates.goodput_mbit.values()))
    tell_failed(rates.failed)
    print(f"{runs} tests of {len(rates.goodput_mbit)} directed pairs")
    return _import(options, rates, "iperf3 logs: TCP goodput at the receiver")


def _import_csv(options: argparse.Namespace) -> int:
    rates = import_profile.from_csv(options.file, options.unit, options.column)
    return _import(options, rates, f"table {options.file.name}")


def _import(options: argparse.Namespace, rates: Rates, source: str) -> int:
    rtts = import_profile.read_rtt(options.rtt, options.rtt_unit) if options.rtt else rates.rtt_ms
    rtt_file = options.rtt.name if options.rtt else options.file.name if rtts else ""
    today = datetime.now(UTC).date()
    labels = Labels(
        options.title or f"Imported on {today}",
        options.source or f"{source}, imported on {today}",
        options.rtt_source or f"table {rtt_file}, imported on {today}",
    )
    return _save(options, import_profile.assemble(options.name, rates, rtts, labels, _lan(options)))


def _measure(options: argparse.Namespace) -> int:
    from testbed.wan import measure

    hosts = measure.read_hosts(options.hosts)
    store.check_free(options.out, options.name, replace=options.replace)
    lan = _lan(options)  # what is wrong with the options comes before the minutes of measuring
    rates, rtt_method = measure.measure(hosts, lambda line: print(line, flush=True), options.logs)
    today = datetime.now(UTC).date()
    title = options.title or f"Measured on {today} between {len(hosts.hosts)} hosts"
    labels = Labels(title, f"{hosts.method}, {today}", f"{rtt_method}, {today}")
    return _save(options, import_profile.assemble(options.name, rates, rates.rtt_ms, labels, lan))


def _save(options: argparse.Namespace, made: Profile) -> int:
    path = store.save_profile(made, options.out, replace=options.replace)
    if made.assumed:
        print("no --rtt: each pair has the lowest RTT of its own transfers, marked as assumed")
    if made.lan_assumed:
        print(f"the LAN is assumed: {made.lan.goodput_mbit:g} Mbit/s, {made.lan.rtt_ms:g} ms; state it with --lan-mbit")
    print(f"written: {path} and .csv: {len(made.regions)} regions, {len(made.pairs)} directed pairs")
    return 0


def _lan(options: argparse.Namespace) -> Link | None:
    if options.lan_mbit is None:
        return None
    return Link(reading.rate(options.lan_mbit, "--lan-mbit"), reading.rtt(options.lan_rtt_ms, "--lan-rtt-ms"))
