"""The sub-command `testbed fidelity`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from testbed import interpreter
from testbed.cli.inside import enter
from testbed.cli.options import Commands

TEXT = "measure whether the emulated network does what a profile says"
EPILOG = """\
writes DIR/fidelity.json and DIR/fidelity.png (fidelity-virtual.* with --against); exits with 1 when a bound is missed
examples:
  testbed fidelity weightgrad-ec2
  testbed fidelity wanify-8 --quick --out results/fidelity/wanify-8
  testbed fidelity weightgrad-ec2 --against virtual
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add("fidelity", _fidelity, TEXT, epilog=EPILOG)
    parser.add_argument("profile", help="a profile's name, or a TOML file")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the results go (results/fidelity/PROFILE)")
    parser.add_argument("--quick", action="store_true", help="less than a minute: fewer sizes and repeats, no grid")
    parser.add_argument(
        "--against",
        choices=("virtual",),
        help="compare with the virtual network: message by message, and the steps of three systems",
    )


def _fidelity(options: argparse.Namespace) -> int:
    from testbed.emulation import sandbox
    from testbed.errors import InputError
    from testbed.files import make_folder
    from testbed.wan import profile as profiles

    profile = profiles.load(options.profile)
    folder = options.out or Path("results", "fidelity", profile.name)
    if not sandbox.inside():
        if reason := sandbox.available():
            raise InputError(f"this machine cannot emulate: {reason}")
        make_folder(folder)  # before all is measured that it is for
        return enter(interpreter.testbed(*_arguments(options)))
    from testbed.fidelity.run import run

    return run(options.profile, options.quick, options.against is not None, folder)


def _arguments(options: argparse.Namespace) -> list[str]:
    """The same command line again."""
    arguments: list[Any] = ["fidelity", options.profile]
    arguments += ["--out", options.out] if options.out else []
    arguments += ["--quick"] if options.quick else []
    arguments += ["--against", options.against] if options.against else []
    return [str(argument) for argument in arguments]
