"""The sub-commands `testbed profile` and `testbed trace`; thin: each parses its options and calls one function."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import InputError
from testbed.wan import import_profile, import_trace, profile, reading, store, trace
from testbed.wan.import_profile import MS, Labels, Rates
from testbed.wan.profile import Link, Pair, Profile
from testbed.wan.reading import UNITS_MBIT

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

FLOOR_MBIT = 0.1  # for mahimahi's empty intervals: slow enough to feel like an outage, fast enough for TCP to live on
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
TRACE_EXAMPLES = """\
examples:
  testbed trace import iperf3 day.json --profile weightgrad-ec2 --pair us-west-1:us-east-1 --name day
  testbed trace import mahimahi ATT.down --profile weightgrad-ec2 --pair us-west-1:us-east-1 --name lte
  testbed trace import csv rates.csv --profile wanify-8 --unit Mbit/s --loop 600 --name rates
"""
MEASURE_EXAMPLE = """\
HOSTS.toml lists one host per region:
  duration_s = 10          # of each test; also omit_s = 1, streams = 1, port = 5201
  [[hosts]]
  region = "us-east-1"
  address = "10.0.0.1"     # where the other hosts reach it
  command = ["ssh", "-o", "BatchMode=yes", "ubuntu@54.1.2.3"]   # default: ssh -o BatchMode=yes ADDRESS
"""


def add_commands(commands: Commands) -> None:
    """Add `profile` and `trace` to the sub-commands of `testbed`."""
    profiles = _group(commands, "profile", "list, show, check, import and measure WAN profiles", PROFILE_EXAMPLES)
    _command(profiles, "list", _list, "list the profiles of topologies/profiles/")
    show = _command(profiles, "show", _show, "print a profile's matrix of goodput and RTT")
    show.add_argument("name", help="a profile: its name, or its TOML file")
    show.add_argument("--png", type=Path, metavar="FILE", help="also draw it as a heat map")
    check = _command(profiles, "check", _check, "check a profile's files strictly")
    check.add_argument("file", help="a profile: its TOML file, or its name")
    imports = _group(profiles, "import", "make a profile of measurements", PROFILE_EXAMPLES)
    _add_profile_imports(imports)
    measure = _command(profiles, "measure", _measure, "measure a profile with iperf3 over ssh", MEASURE_EXAMPLE)
    measure.add_argument("hosts", type=Path, metavar="HOSTS.toml")
    measure.add_argument("--logs", type=Path, metavar="DIR", help="keep iperf3's logs here")
    _add_profile_output(measure)

    traces = _group(commands, "trace", "import bandwidth traces", TRACE_EXAMPLES)
    _add_trace_imports(_group(traces, "import", "make a trace of a recording", TRACE_EXAMPLES))


def _group(commands: Commands, name: str, text: str, epilog: str) -> Commands:
    parser = commands.add_parser(name, help=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _command(
    commands: Commands, name: str, function: Callable[[argparse.Namespace], int], text: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text[:1].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=function)
    return parser


def _add_profile_imports(imports: Commands) -> None:
    logs = _command(imports, "iperf3", _import_iperf3, "make a profile of iperf3's logs (iperf3 -J)")
    logs.add_argument(
        "files", type=Path, nargs="+", metavar="LOG.json", help="named <client>__<server>.json, or see --map"
    )
    _add_map(logs)
    table = _command(imports, "csv", _import_csv, "make a profile of a table with the columns src, dst and goodput")
    table.add_argument("file", type=Path, metavar="RATES.csv")
    _add_rate_column(table)
    for parser in (logs, table):
        parser.add_argument(
            "--rtt", type=Path, metavar="RTT.csv", help="round trips: src,dst,rtt_ms or a square matrix"
        )
        parser.add_argument("--rtt-unit", choices=list(MS), default="ms", help="of the round trips (ms)")
        parser.add_argument("--source", default="", help="where the rates come from: who, when, how, licence")
        parser.add_argument("--rtt-source", default="", help="the same for the round trips")
        _add_profile_output(parser)


def _add_trace_imports(imports: Commands) -> None:
    logs = _command(imports, "iperf3", _trace_iperf3, "make a trace of the intervals of iperf3's logs (iperf3 -J -i 1)")
    logs.add_argument(
        "files", type=Path, nargs="+", metavar="LOG.json", help="named <client>__<server>.json, or see --map"
    )
    _add_map(logs)
    phone = _command(imports, "mahimahi", _trace_mahimahi, "make a trace of a mahimahi packet trace")
    phone.add_argument("file", type=Path, metavar="TRACE")
    phone.add_argument("--interval", type=float, default=1.0, metavar="S", help="of the trace's changes, in s (1)")
    table = _command(
        imports, "csv", _trace_csv, "make a trace of a table: time_s, goodput and, without --pair, src, dst"
    )
    table.add_argument("file", type=Path, metavar="FILE.csv")
    _add_rate_column(table)
    for parser in (logs, phone, table):
        parser.add_argument("--pair", type=_pair, action="append", default=[], metavar="SRC:DST",
                            help="the pair that follows the recording; may be repeated")  # fmt: skip
        parser.add_argument("--floor", type=float, metavar="MBIT", default=FLOOR_MBIT if parser is phone else None,
                            help="lowest rate; a link cannot be shaped to 0"
                            + (f" ({FLOOR_MBIT})" if parser is phone else ""))  # fmt: skip
        parser.add_argument("--loop", type=_seconds, metavar="S", help="begin again S seconds after the start")
        parser.add_argument("--profile", required=True, help="the profile whose regions the trace is for")
        _add_output(parser, trace.TRACES)
    phone.add_argument("--hold", action="store_true", help="hold the last rate at the end (mahimahi itself loops)")


def _add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--map", type=_host, action="append", default=[], metavar="HOST=REGION", dest="hosts",
                        help="the region of a host (address or name); may be repeated")  # fmt: skip


def _add_rate_column(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unit", choices=list(UNITS_MBIT), help="of the rates, where the column's name does not tell")
    parser.add_argument(
        "--column", metavar="NAME", help="of the rates (the one that begins with goodput or throughput)"
    )


def _add_profile_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--title", default="", help="what the profile is, in a line")
    parser.add_argument("--lan-mbit", type=float, metavar="MBIT", help="goodput of the LAN (assumed: 1000)")
    parser.add_argument("--lan-rtt-ms", type=float, default=0.2, metavar="MS", help="RTT of that LAN (0.2)")
    _add_output(parser, profile.PROFILES)


def _add_output(parser: argparse.ArgumentParser, folder: Path) -> None:
    parser.add_argument("--name", required=True, help="of the files that are written")
    parser.add_argument("--out", type=Path, default=folder, metavar="DIR",
                        help=f"where they go (topologies/{folder.name}/)")  # fmt: skip
    parser.add_argument("--replace", action="store_true", help="overwrite files of that name")


def _host(text: str) -> tuple[str, str]:
    host, equals, region = text.rpartition("=")
    if not (host and equals and reading.NAME.fullmatch(region)):
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST=REGION, e.g. 10.0.0.1=us-east-1")
    return host, region


def _pair(text: str) -> Pair:
    src, colon, dst = text.partition(":")
    if not (colon and reading.NAME.fullmatch(src) and reading.NAME.fullmatch(dst) and src != dst):
        raise argparse.ArgumentTypeError(f"'{text}' is not SRC:DST, e.g. us-west-1:us-east-1")
    return src, dst


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return value


def _list(_: argparse.Namespace) -> int:
    found = [profile.load(name) for name in profile.available()]
    width = max((len(each.name) for each in found), default=0)
    print(f"{'profile':<{width}}  regions  title")
    for each in found:
        print(f"{each.name:<{width}}  {len(each.regions):>7}  {each.title}")
    return 0


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
    print("sources:")
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
    rates = import_profile.from_iperf3(options.files, _regions(options.hosts))
    runs = sum(map(len, rates.goodput_mbit.values()))
    _tell_failed(rates.failed)
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


def _regions(hosts: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    from testbed.wan.iperf3 import plain_host

    found: dict[str, str] = {}
    for host, region in hosts:
        if found.setdefault(plain_host(host), region) != region:
            raise InputError(f"--map {host}={region}: the host is {found[plain_host(host)]} already")
    return found


def _tell_failed(failed: Sequence[import_profile.Failed]) -> None:
    if failed:
        tests = "1 failed test" if len(failed) == 1 else f"{len(failed)} failed tests"
        print(f"{tests} skipped; the first: {failed[0].where}: {failed[0].error}")


def _trace_iperf3(options: argparse.Namespace) -> int:
    if options.pair and len(options.files) > 1:
        raise InputError("--pair goes with one log; name several <client>__<server>.json, or use --map")
    regions = _regions(options.hosts)
    recording = import_trace.from_iperf3(options.files, options.pair, regions, _floor(options))
    _tell_failed(recording.failed)
    return _save_trace(options, recording, options.loop, "iperf3 logs")


def _trace_mahimahi(options: argparse.Namespace) -> int:
    if not options.pair:
        raise InputError("say which pair follows the trace: --pair SRC:DST")
    if not 0.01 <= options.interval <= 86_400:
        raise InputError(f"--interval {options.interval:g}: it must lie between 0.01 and 86400 s")
    if options.hold and options.loop is not None:
        raise InputError("give --hold or --loop, not both")
    floor = reading.rate(options.floor, "--floor")
    recording = import_trace.from_mahimahi(options.file, options.pair, options.interval, floor)
    loop_s = options.loop or recording.end_s
    about = f"mahimahi trace {options.file.name} at {import_trace.PAYLOAD_BYTES} bytes of payload a packet"
    return _save_trace(options, recording, None if options.hold else loop_s, about)


def _trace_csv(options: argparse.Namespace) -> int:
    recording = import_trace.from_csv(options.file, options.pair, options.unit, options.column, _floor(options))
    return _save_trace(options, recording, options.loop, f"table {options.file.name}")


def _floor(options: argparse.Namespace) -> float | None:
    return None if options.floor is None else reading.rate(options.floor, "--floor")


def _save_trace(
    options: argparse.Namespace, recording: import_trace.Recording, loop_s: float | None, about: str
) -> int:
    made = import_trace.assemble(options.name, recording, profile.load(options.profile), loop_s)
    comments = [f"Imported on {datetime.now(UTC).date()} from {about}."]
    if recording.floored:
        counted = f"{recording.floored} of {len(made.changes)} rates"
        comments.append(f"{counted} were below the floor of {options.floor:g} Mbit/s and stand at it.")
        print(comments[-1])
    path = store.save_trace(made, options.out, comments, replace=options.replace)
    end = "holds" if made.period_s is None else f"loops every {made.period_s:g} s"
    changes = "1 change" if len(made.changes) == 1 else f"{len(made.changes)} changes"
    print(f"written: {path}: {changes} over {recording.end_s:g} s, then it {end}")
    return 0
