"""The sub-command `testbed plot`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.errors import InputError
from testbed.record.place import check

FORMATS = "png,pdf"

PLOT_EXAMPLES = f"""\
kinds: loss, speedup, accuracy, pareto, time, wan, bandwidth, threshold (WeightGrad), bits (MQGrad), timeline (first
steps), faults; those that the run has data for are drawn, each one column of a paper wide. Of several runs: workers,
the loss with more and fewer workers. As wide as a page, and only by name: comparison, stacked (the same, one panel
below the other), ranking (systems in order of speedup, with accuracy), metric (the main metric by time and by WAN
bytes), replay (of a trace), of several runs series.
examples:
  testbed plot {RUN}
  testbed plot {RUN} --kind speedup --kind loss --format pdf --out figures
  testbed plot results/cifarnet-2x2/RUN results/cifarnet-2x5/RUN --kind workers
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    plot = commands.add("plot", _plot, "draw a run's tables and plots again, from its records alone", PLOT_EXAMPLES)
    plot.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="results/<target>/<run>, or a series")
    plot.add_argument("--kind", action="append", default=[], metavar="KIND", help="draw only this kind; repeatable")
    plot.add_argument("--format", default=FORMATS, metavar="A,B", help="of the plots: png, pdf (both)")
    plot.add_argument("--plugin", action="append", default=[], metavar="FILE", help="Python with kinds of your own")
    plot.add_argument("--out", type=Path, metavar="DIR", help="where the plots go (RUN/plots)")


def _plot(options: argparse.Namespace) -> int:
    check(*options.runs)
    from testbed import plugins
    from testbed.record import series
    from testbed.report import pictures
    from testbed.report.numbers.compare import load_all
    from testbed.report.page.markdown import REPLAY
    from testbed.report.terminal import show
    from testbed.report.write import write_report

    plugins.load(options.plugin)
    if len(options.runs) == 1 and series.is_series(options.runs[0]) and not options.kind:
        if options.out or options.format != FORMATS:
            raise InputError("a series is drawn into its own folder; name a --kind to draw it elsewhere, or as others")
        return _plot_series(options.runs[0])
    folder = options.out or options.runs[0] / pictures.FOLDER
    formats = tuple(name for name in options.format.split(",") if name)
    if options.kind or len(options.runs) > 1:
        paths = pictures.write(load_all(options.runs), folder, options.kind, formats)
    else:
        run, frame = write_report(options.runs[0])
        show(run, frame)
        paths = [run.folder / "summary.md", run.folder / "comparison.png"]
        paths += [run.folder / REPLAY] if (run.folder / REPLAY).is_file() else []
        paths += pictures.write([run], folder, formats=formats, frame=frame)
    print(f"written: {', '.join(map(str, paths))}")
    return 0


def _plot_series(folder: Path) -> int:
    """The report of every run of a series, and the series' own."""
    from testbed.record import series
    from testbed.record.info import FILE_NAME
    from testbed.report.series import write_series
    from testbed.report.write import write_report

    labels = list(series.read(folder).points)
    for label in labels:
        if (folder / label / FILE_NAME).is_file():
            write_report(folder / label)
    print(f"written: {', '.join(map(str, write_series(folder)))}")
    return 0
