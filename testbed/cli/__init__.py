"""What a user types: one module a sub-command, thin."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `testbed`; returns the exit code."""
    from testbed.cli import command_line

    return command_line.main(argv)
