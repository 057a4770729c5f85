"""The sub-command `testbed clean`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import Commands


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "delete what killed runs have left: half-written checkpoints, empty folders"
    clean = commands.add("clean", _clean, text, "example: testbed clean --out /data/results")
    clean.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where records are (results)")


def _clean(options: argparse.Namespace) -> int:
    from testbed.harness.checkpoint import sweep

    for path in sweep(options.out):
        print(f"deleted {path}")
    return 0
