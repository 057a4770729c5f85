"""What `testbed exec` and `testbed shell` share: the network that is asked for, and the way into its sandbox."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import interpreter
from testbed.cli.inside import enter
from testbed.cli.options import add_faults, faults
from testbed.errors import InputError

if TYPE_CHECKING:
    from testbed.faults import Schedule
    from testbed.programs.wan import Asked
    from testbed.wan.plan import NetworkPlan


def add_network(parser: argparse.ArgumentParser, kind: str) -> None:
    """Declare what names a network with its hosts; `kind` is the folder below results/ that records go to."""
    parser.add_argument("profile", help="a profile's name, or a TOML file")
    parser.add_argument("--hosts", required=True, metavar="REGION=N,...", help="how many hosts in which regions")
    parser.add_argument("--trace", metavar="FILE", help="bandwidth trace that the WAN follows from the start")
    add_faults(parser)
    parser.add_argument("--dilation", type=float, default=1.0, metavar="K", help="make all links K times slower (1)")
    parser.add_argument("--no-gate", action="store_true", help="do not measure the network before")
    parser.add_argument(
        "--publish",
        action="append",
        default=[],
        metavar="HOST:PORT=LOCAL",
        help="make a port of a host reachable on this machine's 127.0.0.1:LOCAL; may be repeated",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where the record goes (results/{kind}/TIME)")
    parser.add_argument("--listening", default="", help=argparse.SUPPRESS)  # sockets of --publish, in the sandbox


def plan_of(options: argparse.Namespace) -> NetworkPlan:
    """The hosts and the network that the options name; InputError where there are no such."""
    from testbed.programs import hosts
    from testbed.wan import profile as profiles

    if not 1 <= options.dilation <= 1000:
        raise InputError(f"--dilation: {options.dilation:g} is not between 1 and 1000")
    return hosts.plan_of(profiles.load(options.profile), hosts.asked(options.hosts))


def in_sandbox(
    options: argparse.Namespace,
    plan: NetworkPlan,
    kind: str,
    words: Sequence[str],
    work: Callable[[Asked, Path], int],
) -> int:
    """Do `work` in a sandbox: start the same command line in one, or, where this is one, call it with a new folder.

    Parameters
    ----------
    plan : what `plan_of` made of the options
    words : of the command line, beside those of `add_network`
    """
    from testbed.emulation import sandbox
    from testbed.files import new_folder
    from testbed.programs import publish
    from testbed.programs.wan import Asked

    schedule = _schedule(options, plan)
    if options.out is not None and options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise InputError(f"{options.out} is there and no empty folder; name another one with --out")
    line = [kind, *_arguments(options), *words]
    if not sandbox.inside():
        if reason := sandbox.available():
            raise InputError(f"this machine cannot emulate: {reason}")
        ports = publish.listen(options.publish, plan)
        descriptors = [each.listener.fileno() for each in ports]
        listening = ["--listening", ",".join(map(str, descriptors))] if descriptors else []
        found = interpreter.testbed(kind, *listening, *line[1:])
        return enter(found, descriptors)
    if options.listening:
        ports = publish.inherited(options.publish, [int(word) for word in options.listening.split(",")], plan)
    else:
        ports = publish.listen(options.publish, plan)
    folder = options.out or new_folder(Path("results", kind), f"{datetime.now():%Y%m%d-%H%M%S}")
    try:
        return work(Asked(plan, schedule, options.dilation, not options.no_gate, ports, line), folder)
    finally:
        _report(folder)


def _schedule(options: argparse.Namespace, plan: NetworkPlan) -> Schedule | None:
    """What the WAN does meanwhile; None where it stays as it is."""
    from testbed.experiment.load import read_given
    from testbed.faults import Schedule
    from testbed.wan import trace as traces

    trace = traces.load(traces.find(options.trace), plan.regions) if options.trace else None
    found = read_given(faults(options))
    for fault in found:
        if fault.pace != 1.0 or fault.kills:
            raise InputError(f"--fault: {fault.about}: programs are not slowed or stopped here; name a fault of links")
    return Schedule(trace, found, plan.wan, plan.hosts) if trace or found else None


def say(line: str) -> None:
    """A word of the testbed's own, beside what the programs write."""
    print(f"testbed: {line}", file=sys.stderr, flush=True)


def _report(folder: Path) -> None:
    """What the links carried, shown and kept, of all that got so far."""
    from testbed.record import program

    if (folder / program.FILE_NAME).exists():
        from testbed.report.page.program import write

        print(write(folder)[0].read_text().partition("\n\n")[2], end="", flush=True)
        say(f"record: {folder}")


def _arguments(options: argparse.Namespace) -> list[str]:
    """The options of `add_network` again."""
    found: list[object] = [options.profile, "--hosts", options.hosts]
    found += ["--dilation", options.dilation] if options.dilation != 1 else []
    found += ["--trace", options.trace] if options.trace else []
    for fault in options.fault:
        found += ["--fault", fault]
    for path in options.faults:
        found += ["--faults", path]
    found += ["--no-gate"] if options.no_gate else []
    found += ["--out", options.out] if options.out else []
    for port in options.publish:
        found += ["--publish", port]
    return [str(each) for each in found]
