"""The sub-command `testbed report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "write a run's report page: one HTML file with everything in it"
    report = commands.add("report", _report, text, f"example: testbed report {RUN}")
    report.add_argument("run", type=Path, help="results/<target>/<run>")
    report.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/report.html)")


def _report(options: argparse.Namespace) -> int:
    from testbed.report.page import write_page

    print(f"written: {write_page(options.run, options.out)}")
    return 0
