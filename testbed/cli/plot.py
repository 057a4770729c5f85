"""The sub-command `testbed plot`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.errors import InputError

PLOT_EXAMPLES = f"""\
kinds: loss, speedup, accuracy, pareto, time, wan, bandwidth, threshold (WeightGrad), bits (MQGrad); those that the run
has data for are drawn, each one column of a paper wide. Of several runs: workers, the loss with more and fewer workers.
examples:
  testbed plot {RUN}
  testbed plot {RUN} --kind speedup --kind loss --format pdf --out figures
  testbed plot results/cifarnet-2x2/RUN results/cifarnet-2x5/RUN --kind workers
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    plot = commands.add("plot", _plot, "draw a run's tables and plots again, from its records alone", PLOT_EXAMPLES)
    plot.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="results/<target>/<run>")
    plot.add_argument("--kind", action="append", default=[], metavar="KIND", help="draw only this kind; repeatable")
    plot.add_argument("--format", default="png,pdf", metavar="A,B", help="of the plots: png, pdf (both)")
    plot.add_argument("--out", type=Path, metavar="DIR", help="where the plots go (RUN/plots)")


def _plot(options: argparse.Namespace) -> int:
    from testbed.harness import sweep as series
    from testbed.record.reader import load
    from testbed.report import figures
    from testbed.report.compare import load_all
    from testbed.report.summary import summarize
    from testbed.report.tables import REPLAY, show
    from testbed.report.write import write_report

    if series.is_series(options.runs[0]):
        return _plot_series(options.runs[0])
    folder = options.out or options.runs[0] / figures.FOLDER
    formats = tuple(name for name in options.format.split(",") if name)
    if len(options.runs) > 1:
        if set(options.kind) - {figures.WORKERS}:
            raise InputError(f"of several runs only '--kind {figures.WORKERS}' is drawn; give one run")
        paths = figures.draw_workers(load_all(options.runs), folder, formats)
    elif options.kind:
        run = load(options.runs[0])
        paths = figures.draw(run, summarize(run), folder, options.kind, formats)
    else:
        run, frame = write_report(options.runs[0])
        show(run, frame)
        paths = [run.folder / "summary.md", run.folder / "comparison.png"]
        paths += [run.folder / REPLAY] if (run.folder / REPLAY).is_file() else []
        paths += figures.draw(run, frame, folder, formats=formats)
    if not paths:
        raise InputError(f"{options.runs[0]}: its records hold nothing for {', '.join(options.kind)}")
    print(f"written: {', '.join(map(str, paths))}")
    return 0


def _plot_series(folder: Path) -> int:
    """The report of every run of a series, and the series' own."""
    from testbed.harness import sweep as series
    from testbed.record.info import FILE_NAME
    from testbed.report.series import write_series
    from testbed.report.write import write_report

    labels = list(series.read(folder).points)
    for label in labels:
        if (folder / label / FILE_NAME).is_file():
            write_report(folder / label)
    print(f"written: {', '.join(map(str, write_series(folder, labels)))}")
    return 0
