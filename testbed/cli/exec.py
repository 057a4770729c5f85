"""The sub-command `testbed exec`."""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import datetime
from pathlib import Path

from testbed.cli.options import Commands

EPILOG = """\
The command is started once on each host, all of them on this machine, and sees a network that is as slow as the
profile says. It finds what launchers of distributed programs set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the
like, and TESTBED_HOST, TESTBED_REGION, TESTBED_HOSTS; the names us-west-1-h0 (a host) and us-west-1 (its first host)
resolve. There is no other network than this one. Writes DIR/summary.md, links.parquet, events.jsonl, exec.json and
logs/HOST.log; exits with the status of the first host that failed.
examples:
  testbed exec weightgrad-ec2 --hosts us-west-1=2,us-east-1=2 -- python train.py --epochs 3
  testbed exec weightgrad-ec2 --hosts us-west-1=1,us-east-1=1 -- ping -c 3 us-east-1
  testbed exec weightgrad-ec2 --hosts us-west-1=4,us-east-1=4 --trace topologies/traces/outage.csv -- ./program
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add("exec", _exec, "run any program on an emulated WAN, once on each host", EPILOG)
    parser.usage = "testbed exec PROFILE --hosts REGION=N,... [options] -- COMMAND..."
    parser.add_argument("profile", help="a profile's name, or a TOML file")
    parser.add_argument("--hosts", required=True, metavar="REGION=N,...", help="how many hosts in which regions")
    parser.add_argument("--trace", metavar="FILE", help="bandwidth trace that the WAN follows from the start")
    parser.add_argument("--dilation", type=float, default=1.0, metavar="K", help="make all links K times slower (1)")
    parser.add_argument("--keep-going", action="store_true", help="let the others go on where one host's command fails")
    parser.add_argument("--no-gate", action="store_true", help="do not measure the network before")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the record goes (results/exec/TIME)")
    parser.set_defaults(program=())  # what stands after --


def _exec(options: argparse.Namespace) -> int:
    from testbed.emulation import sandbox
    from testbed.errors import InputError
    from testbed.files import new_folder
    from testbed.programs import hosts
    from testbed.wan import profile as profiles
    from testbed.wan import trace as traces

    command = tuple(options.program)
    if not command:
        raise InputError("testbed exec needs a command: testbed exec PROFILE --hosts REGION=N,... -- COMMAND...")
    if shutil.which(command[0]) is None:
        raise InputError(f"no command '{command[0]}' on this machine; a program of this folder is ./{command[0]}")
    if not 1 <= options.dilation <= 1000:
        raise InputError(f"--dilation: {options.dilation:g} is not between 1 and 1000")
    plan = hosts.plan_of(profiles.load(options.profile), hosts.asked(options.hosts))
    trace = traces.load(traces.find(options.trace), plan.regions) if options.trace else None
    if options.out is not None and options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise InputError(f"{options.out} is there and no empty folder; name another one with --out")
    if not sandbox.inside():
        if reason := sandbox.available():
            raise InputError(f"this machine cannot emulate: {reason}")
        return sandbox.run([sys.executable, "-m", "testbed", *_arguments(options), "--", *command])
    from testbed.programs.run import Program, run

    folder = options.out or new_folder(Path("results", "exec"), f"{datetime.now():%Y%m%d-%H%M%S}")
    program = Program(command, trace, options.dilation, options.keep_going, not options.no_gate)
    status = run(plan, program, folder, _say)
    print((folder / "summary.md").read_text().partition("\n\n")[2], end="")
    _say(f"record: {folder}")
    return status


def _arguments(options: argparse.Namespace) -> list[str]:
    """The same command line again, without the program."""
    found: list[object] = ["exec", options.profile, "--hosts", options.hosts, "--dilation", options.dilation]
    found += ["--trace", options.trace] if options.trace else []
    found += ["--out", options.out] if options.out else []
    found += ["--keep-going"] if options.keep_going else []
    found += ["--no-gate"] if options.no_gate else []
    return [str(each) for each in found]


def _say(line: str) -> None:
    print(f"testbed: {line}", file=sys.stderr, flush=True)
