"""The sub-command `testbed report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.record.place import check


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "write the report page of a run or of `testbed exec`: one HTML file with everything in it"
    report = commands.add("report", _report, text, f"example: testbed report {RUN} --open")
    report.add_argument("run", type=Path, help="results/<target>/<run>")
    report.add_argument("--open", action="store_true", help="and open it in the browser")
    report.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/report.html)")


def _report(options: argparse.Namespace) -> int:
    import webbrowser

    check(options.run)
    from testbed.errors import InputError
    from testbed.record import program
    from testbed.report.page import write_page
    from testbed.report.page.program import write as write_program

    missing: list[str] = []
    if (options.run / program.FILE_NAME).is_file():
        path = write_program(options.run, options.out)[1]
    else:
        path = write_page(options.run, options.out, missing.append)
    print("\n".join([f"written: {path}", *missing]))
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        raise InputError(f"no browser was found to open {path} with; $BROWSER names one")
    return 0
