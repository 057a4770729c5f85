"""The sub-command `testbed trace`: make traces of bandwidth recordings."""

from __future__ import annotations

import argparse
import math
from datetime import UTC, datetime
from pathlib import Path

from testbed.cli.options import Commands
from testbed.cli.recordings import add_map, add_output, add_rate_column, regions, tell_failed
from testbed.errors import InputError
from testbed.wan import import_trace, profile, reading, store, trace
from testbed.wan.profile import Pair

FLOOR_MBIT = 0.1  # for mahimahi's empty intervals: slow enough to feel like an outage, fast enough for TCP to live on
MOST_CHANGES = 20  # that are shown one by one
TRACE_EXAMPLES = """\
examples:
  testbed trace show brownout
  testbed trace check mine.csv --profile weightgrad-ec2
  testbed trace import iperf3 day.json --profile weightgrad-ec2 --pair us-west-1:us-east-1 --name day
  testbed trace import mahimahi ATT.down --profile weightgrad-ec2 --pair us-west-1:us-east-1 --name lte
  testbed trace import csv rates.csv --profile wanify-8 --unit Mbit/s --loop 600 --name rates
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    traces = commands.group("trace", "show, check and import bandwidth traces", TRACE_EXAMPLES)
    show = traces.add("show", _show, "print what a trace does to which links", TRACE_EXAMPLES)
    check = traces.add("check", _check, "check a trace's file strictly", TRACE_EXAMPLES)
    for parser in (show, check):
        parser.add_argument("name", help="a trace: its name, or its CSV file")
        parser.add_argument("--profile", default="", help="the profile that must have its regions (the one it names)")
    _add_trace_imports(traces.group("import", "make a trace of a recording", TRACE_EXAMPLES))


def _read(options: argparse.Namespace) -> tuple[trace.Trace, str]:
    """The trace, and what it says of itself."""
    path = trace.find(options.name)
    said, regions_in_it = trace.about(path)
    known = profile.load(options.profile).regions if options.profile else regions_in_it
    return trace.load(path, known), said


def _show(options: argparse.Namespace) -> int:
    found, said = _read(options)
    last_s = found.changes[-1].time_s
    print(f"{found.name}: {said or 'it says nothing of itself'}\n")
    for link in dict.fromkeys(change.link for change in found.changes):
        own = [change for change in found.changes if change.link == link]
        rates = [change.goodput_mbit for change in own]
        rtts = [change.rtt_ms for change in own if change.rtt_ms is not None]
        delay = f", round trip {min(rtts):g} to {max(rtts):g} ms" if rtts else ""
        print(f"{link}: {len(own):,} changes, {min(rates):g} to {max(rates):g} Mbit/s{delay}")
    print()
    for change in found.changes[:MOST_CHANGES]:
        delay = "" if change.rtt_ms is None else f", round trip {change.rtt_ms:g} ms"
        print(f"at {change.time_s:g} s  {change.link}  {change.goodput_mbit:g} Mbit/s{delay}")
    if len(found.changes) > MOST_CHANGES:
        print(f"... and {len(found.changes) - MOST_CHANGES:,} more")
    print(f"after the last, at {last_s:g} s, {found.then}")
    return 0


def _check(options: argparse.Namespace) -> int:
    found, _ = _read(options)
    links = len({change.pair for change in found.changes})
    print(f"ok: {found.name}: {len(found.changes):,} changes of {links} links over {found.changes[-1].time_s:g} s")
    return 0


def _add_trace_imports(imports: Commands) -> None:
    logs = imports.add("iperf3", _trace_iperf3, "make a trace of the intervals of iperf3's logs (iperf3 -J -i 1)")
    logs.add_argument(
        "files", type=Path, nargs="+", metavar="LOG.json", help="named <client>__<server>.json, or see --map"
    )
    add_map(logs)
    phone = imports.add("mahimahi", _trace_mahimahi, "make a trace of a mahimahi packet trace")
    phone.add_argument("file", type=Path, metavar="TRACE")
    phone.add_argument("--interval", type=float, default=1.0, metavar="S", help="of the trace's changes, in s (1)")
    table = imports.add("csv", _trace_csv, "make a trace of a table: time_s, goodput and, without --pair, src, dst")
    table.add_argument("file", type=Path, metavar="FILE.csv")
    add_rate_column(table)
    for parser in (logs, phone, table):
        parser.add_argument("--pair", type=_pair, action="append", default=[], metavar="SRC:DST",
                            help="the pair that follows the recording; may be repeated")  # fmt: skip
        parser.add_argument("--floor", type=float, metavar="MBIT", default=FLOOR_MBIT if parser is phone else None,
                            help="lowest rate; a link cannot be shaped to 0"
                            + (f" ({FLOOR_MBIT})" if parser is phone else ""))  # fmt: skip
        parser.add_argument("--loop", type=_seconds, metavar="S", help="begin again S seconds after the start")
        parser.add_argument("--profile", required=True, help="the profile whose regions the trace is for")
        add_output(parser, trace.FOLDER)
    phone.add_argument("--hold", action="store_true", help="hold the last rate at the end (mahimahi itself loops)")


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


def _trace_iperf3(options: argparse.Namespace) -> int:
    if options.pair and len(options.files) > 1:
        raise InputError("--pair goes with one log; name several <client>__<server>.json, or use --map")
    found = regions(options.hosts)
    recording = import_trace.from_iperf3(options.files, options.pair, found, _floor(options))
    tell_failed(recording.failed)
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
