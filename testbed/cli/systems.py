"""The sub-command `testbed systems`."""

from __future__ import annotations

import argparse
import sys

from testbed.cli.options import Commands


def add(commands: Commands) -> None:
    """Add the sub-command."""
    epilog = "examples:\n  testbed systems\n  testbed systems --plugin ./mine.py"
    listing = commands.add("systems", _systems, "list the training systems that can be run by name", epilog)
    listing.add_argument(
        "--plugin", action="append", default=[], metavar="FILE|MODULE", help="Python with systems of your own"
    )


def _systems(options: argparse.Namespace) -> int:
    from testbed import plugins
    from testbed.cli.listing import show
    from testbed.systems import SYSTEMS

    plugins.load(options.plugin)
    show({name: SYSTEMS[name].__doc__ or sys.modules[SYSTEMS[name].__module__].__doc__ for name in sorted(SYSTEMS)})
    return 0
