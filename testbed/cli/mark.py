"""The sub-command `testbed mark`."""

from __future__ import annotations

import argparse

from testbed.cli.options import Commands

EPILOG = """\
For programs that `testbed exec` or `testbed shell` started: the mark stands in the record and in its picture at the
moment it was set. A line written to the pipe that TESTBED_MARKS names does the same, faster:
  testbed mark "epoch 3"
  echo "epoch 3" > $TESTBED_MARKS
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add("mark", _mark, "set a mark in the record of the WAN that this program runs on", EPILOG)
    parser.add_argument("text", help="what happened, in a few words")


def _mark(options: argparse.Namespace) -> int:
    from testbed.programs import marks

    marks.write(options.text)
    return 0
