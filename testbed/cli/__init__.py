"""What a user types: one module a sub-command, thin."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `testbed`; returns the exit code."""
    try:
        from testbed.cli import command_line
    except KeyboardInterrupt:  # it takes a second
        print("testbed: stopped", file=sys.stderr)
        return 1
    return command_line.main(argv)
