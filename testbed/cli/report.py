"""The sub-command `testbed report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.record.place import check


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "write the report page of a run or of `testbed exec`: one HTML file with everything in it"
    report = commands.add("report", _report, text, f"example: testbed report {RUN}")
    report.add_argument("run", type=Path, help="results/<target>/<run>")
    report.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/report.html)")


def _report(options: argparse.Namespace) -> int:
    check(options.run)
    from testbed.record import program
    from testbed.report.page import write_page
    from testbed.report.page.program import write as write_program

    if (options.run / program.FILE_NAME).is_file():
        path = write_program(options.run, options.out)[1]
    else:
        path = write_page(options.run, options.out)
    print(f"written: {path}")
    return 0
