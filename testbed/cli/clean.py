"""The sub-command `testbed clean`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import Commands
from testbed.errors import InputError


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "delete what killed runs have left: half-written checkpoints, empty folders; runs that go on are left alone"
    clean = commands.add("clean", _clean, text, "example: testbed clean --out /data/results")
    clean.add_argument("--out", type=Path, metavar="DIR", help="where records are (results)")


def _clean(options: argparse.Namespace) -> int:
    if options.out is not None and not options.out.is_dir():
        raise InputError(f"--out {options.out}: no such folder; name the one that holds results")
    from testbed.harness.checkpoint import sweep

    deleted, going_on = sweep(options.out or Path("results"))  # which may not be there yet
    for path in deleted:
        print(f"deleted {path}")
    for run in going_on:
        print(f"skipped {run}: this run is still going on")
    return 0
