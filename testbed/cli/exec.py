"""The sub-command `testbed exec`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cli.on_wan import add_network, in_sandbox, plan_of, say
from testbed.cli.options import Commands
from testbed.errors import InputError

if TYPE_CHECKING:
    from testbed.programs.wan import Asked

EPILOG = """\
The command is started once on each host, all of them on this machine, and sees a network that is as slow as the
profile says. It finds what launchers of distributed programs set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the
like, and TESTBED_HOST, TESTBED_REGION, TESTBED_HOSTS; the names us-west-1-h0 (a host) and us-west-1 (its first host)
resolve. There is no other network than this one. Several commands, a server and its clients, are started by a TOML
file of [[start]] tables (--start; docs/any-program.md). Writes DIR/summary.md, report.html, links.png, links.parquet,
events.jsonl, exec.json and logs/HOST.log; exits with the status of the first host that failed.
examples:
  testbed exec weightgrad-ec2 --hosts us-west-1=2,us-east-1=2 -- python train.py --epochs 3
  testbed exec weightgrad-ec2 --hosts us-west-1=1,us-east-1=1 -- ping -c 3 us-east-1
  testbed exec weightgrad-ec2 --hosts us-west-1=1,us-east-1=1 --start web.toml --publish us-east-1-h0:8080=9000
  testbed exec weightgrad-ec2 --hosts us-west-1=4,us-east-1=4 --trace topologies/traces/outage.csv -- ./program
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add("exec", _exec, "run any program on an emulated WAN, once on each host", EPILOG)
    parser.usage = "testbed exec PROFILE --hosts REGION=N,... [options] (-- COMMAND... | --start FILE)"
    add_network(parser, "exec")
    parser.add_argument("--start", type=Path, metavar="FILE", help="what starts where, instead of a command after --")
    parser.add_argument("--keep-going", action="store_true", help="let the others go on where one host's command fails")
    parser.set_defaults(program=())  # what stands after --


def _exec(options: argparse.Namespace) -> int:
    from testbed.programs import starts

    command = tuple(options.program)
    if bool(command) == bool(options.start):
        raise InputError("testbed exec needs a command, after --, or --start FILE: one of them")
    plan = plan_of(options)
    asked = starts.load(options.start, plan) if options.start else starts.everywhere(plan, command)
    title = options.start.name if options.start else Path(command[0]).name

    def work(network: Asked, folder: Path) -> int:
        from testbed.programs.run import run

        return run(network, asked, folder, say, title, options.keep_going)

    words = ["--start", str(options.start)] if options.start else []
    words += ["--keep-going"] if options.keep_going else []
    return in_sandbox(options, plan, "exec", [*words, *(["--", *command] if command else [])], work)
