"""The sub-command `testbed explain`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.record.place import check

EXAMPLES = f"""\
examples:
  testbed explain {RUN}
  testbed explain {RUN} weightgrad"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "say why a step of each system takes as long: the critical path through roles and links"
    command = commands.add("explain", _explain, text, EXAMPLES)
    command.add_argument("run", type=Path, help="results/<target>/<run>")
    command.add_argument("system", nargs="?", default="", help="one of the run's: with its path, piece by piece (all)")
    command.add_argument("--seed", type=int, help="one of the run's (each system's first)")


def _explain(options: argparse.Namespace) -> int:
    check(options.run)
    from rich.markup import escape

    from testbed.record.reader import load
    from testbed.report.numbers import why
    from testbed.report.numbers.timeline import chosen
    from testbed.report.terminal import plain_unless_terminal, rich_table

    run, console = load(options.run), plain_unless_terminal(None)
    found = [] if options.system else why.of_systems(run, options.seed)
    found = found or [why.why(run, chosen(run, options.system, options.seed))]
    console.print(rich_table(why.HEAD, *why.rows(found)))
    if options.system:
        console.print(rich_table("The last recorded step", *why.path_rows(found[0])))
    for it in found:
        console.print(escape(it.sentence))
    for sentence in run.missing:
        console.print(escape(sentence), style="yellow")
    return 0
