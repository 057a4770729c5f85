"""The sub-command `testbed compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.errors import InputError
from testbed.record.place import check

COMPARE_EXAMPLES = f"""\
examples:
  testbed compare {RUN}
  testbed compare {RUN} results/cifarnet/20260102-120000-mininet --over terngrad
  testbed compare {RUN} results/cifarnet/20260102-120000-mininet --plot side-by-side.png
  testbed compare results/cifarnet/* --loss 1.7 --accuracy 0.45 --csv comparison.csv --markdown comparison.md
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "set the systems of one or more runs side by side"
    compare = commands.add("compare", _compare, text, COMPARE_EXAMPLES)
    compare.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run, or a series: all of its runs")
    compare.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="SYSTEM",
        help="the speedup over this system, too; may be repeated",
    )
    compare.add_argument("--loss", type=float, help="time to this training loss instead of the experiment's target")
    compare.add_argument("--accuracy", type=float, help="time to this test accuracy (a fraction), also beside --loss")
    compare.add_argument("--csv", type=Path, metavar="FILE", help="write a row per run, system and seed")
    compare.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    compare.add_argument("--plot", type=Path, metavar="FILE", help="draw them side by side, as .png or .pdf")
    compare.add_argument(
        "--force",
        action="store_true",
        help="also compare runs that differ in model, data, profile, dilation, target or compute; marked",
    )


def _compare(options: argparse.Namespace) -> int:
    check(*options.runs)
    from testbed.files import write_whole
    from testbed.record.series import labels
    from testbed.report.numbers.asked import target_of
    from testbed.report.numbers.compare import compare, load_all, names_of
    from testbed.report.numbers.summary import counted
    from testbed.report.numbers.tables import csv
    from testbed.report.page.markdown import compared_markdown
    from testbed.report.pictures import draw
    from testbed.report.pictures.style import FORMATS, save
    from testbed.report.terminal import show_compared

    if options.plot is not None and options.plot.suffix[1:] not in FORMATS:
        raise InputError(f"--plot {options.plot}: must end in .{' or .'.join(FORMATS)}")
    target = target_of(options.loss, options.accuracy)
    runs = load_all(options.runs)
    found = compare(runs, options.force, options.over, target)
    show_compared(found)
    if options.csv:
        write_whole(options.csv, csv(found.frame))
        print(f"written: {options.csv}")
    if options.markdown:
        write_whole(options.markdown, compared_markdown(found))
        print(f"written: {options.markdown}")
    if options.plot:
        called = dict(zip(names_of(runs), labels([run.folder for run in runs]), strict=True))
        frame = counted(found.frame, ("run", "system"))  # as in the table, by the same target
        drawn = draw(runs, "series", frame.assign(run=frame["run"].map(called)))
        save(drawn, options.plot, options.plot.suffix[1:])
        print(f"written: {options.plot}")
    return 0
