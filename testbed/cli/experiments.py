"""The sub-command `testbed experiments`."""

from __future__ import annotations

import argparse

from testbed.cli.options import Commands


def add(commands: Commands) -> None:
    """Add the sub-command."""
    commands.add(
        "experiments", _experiments, "list the experiments that can be run by name", "example: testbed run gpt"
    )


def _experiments(options: argparse.Namespace) -> int:
    from testbed.cli.listing import show
    from testbed.experiment import load

    show({name: load.title_of(name) for name in load.names()})
    return 0
