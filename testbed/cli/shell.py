"""The sub-command `testbed shell`."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cli.on_wan import add_network, in_sandbox, plan_of, say
from testbed.cli.options import Commands

if TYPE_CHECKING:
    from testbed.programs.wan import Asked

EPILOG = """\
Brings the network up and shows a prompt, as `mn` does; `help` there lists the commands: run one on a host, open a
shell on it, look at the links, change or cut them. Commands are taken from a pipe as well:
  testbed shell weightgrad-ec2 --hosts us-west-1=1,us-east-1=1
  echo "us-west-1-h0 ping -c 3 us-east-1" | testbed shell weightgrad-ec2 --hosts us-west-1=1,us-east-1=1
The record is that of `testbed exec`.
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add("shell", _shell, "bring an emulated WAN up and take commands at a prompt", EPILOG)
    add_network(parser, "shell")


def _shell(options: argparse.Namespace) -> int:
    def work(network: Asked, folder: Path) -> int:
        from testbed.programs.shell import run

        return run(network, folder, say)

    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # a stopped prompt would share the terminal with the user's shell
    return in_sandbox(options, plan_of(options), "shell", [], work)
