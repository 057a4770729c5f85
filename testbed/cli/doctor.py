"""The sub-command `testbed doctor`."""

from __future__ import annotations

import argparse

from testbed.cli.options import Commands


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "say what this machine can run, need by need, and what to do about what it lacks"
    doctor = commands.add("doctor", _doctor, text, "exits with 0 where some fabric can run, else with 1")
    doctor.add_argument("--json", action="store_true", help="as JSON, for scripts")


def _doctor(options: argparse.Namespace) -> int:
    from testbed.cli.needs import report

    return report(options.json)
