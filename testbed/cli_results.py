"""The sub-commands that read results: `testbed plot`, `compare`, `report`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from testbed.errors import InputError

RUN = "results/cifarnet/20260101-120000-virtual"
PLOT_EXAMPLES = f"""\
kinds: loss, speedup, accuracy, pareto, time, wan, bandwidth, threshold (WeightGrad), bits (MQGrad); those that the run
has data for are drawn, each one column of a paper wide. Of several runs: workers, the loss with more and fewer workers.
examples:
  testbed plot {RUN}
  testbed plot {RUN} --kind speedup --kind loss --format pdf --out figures
  testbed plot results/cifarnet-2x2/RUN results/cifarnet-2x5/RUN --kind workers
"""
COMPARE_EXAMPLES = f"""\
examples:
  testbed compare {RUN}
  testbed compare {RUN} results/cifarnet/20260102-120000-mininet --over terngrad
  testbed compare results/cifarnet/* --loss 1.7 --accuracy 0.45 --csv comparison.csv --markdown comparison.md
"""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the sub-commands; `command` is the command line's own helper (name, function, text, epilog)."""
    plot = command("plot", _plot, "draw a run's tables and plots again, from its records alone", PLOT_EXAMPLES)
    plot.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="results/<target>/<run>")
    plot.add_argument("--kind", action="append", default=[], metavar="KIND", help="draw only this kind; repeatable")
    plot.add_argument("--format", default="png,pdf", metavar="A,B", help="of the plots: png, pdf (both)")
    plot.add_argument("--out", type=Path, metavar="DIR", help="where the plots go (RUN/plots)")

    text = "write a run's report page: one HTML file with everything in it"
    report = command("report", _report, text, f"example: testbed report {RUN}")
    report.add_argument("run", type=Path, help="results/<target>/<run>")
    report.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/report.html)")

    text = "show what each role of a run sends a step, against float32 and against the baseline"
    traffic = command("bytes", _bytes, text, f"example: testbed bytes {RUN}")
    traffic.add_argument("run", type=Path, help="results/<target>/<run>")

    text = "set the systems of one or more runs side by side"
    compare = command("compare", _compare, text, COMPARE_EXAMPLES)
    compare.add_argument("runs", type=Path, nargs="+", metavar="RUN")
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
    compare.add_argument(
        "--force", action="store_true", help="also compare runs on different data, models, targets or networks; marked"
    )


def _plot(options: argparse.Namespace) -> int:
    from testbed import series
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
    from testbed import series
    from testbed.record.info import FILE_NAME
    from testbed.report.series import write_series
    from testbed.report.write import write_report

    labels = list(series.read(folder).points)
    for label in labels:
        if (folder / label / FILE_NAME).is_file():
            write_report(folder / label)
    print(f"written: {', '.join(map(str, write_series(folder, labels)))}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from testbed.report.page import write_page

    print(f"written: {write_page(options.run, options.out)}")
    return 0


def _bytes(options: argparse.Namespace) -> int:
    from testbed.record.reader import load
    from testbed.report.tables import markdown_table
    from testbed.report.traffic import rows, traffic
    from testbed.workloads.workload import parameter_count_of

    run = load(options.run)
    parameters = run.info.parameters or parameter_count_of(run.info.experiment)
    print(markdown_table(*rows(traffic(run), parameters)))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from testbed.record.files import write_whole
    from testbed.report.compare import compare, load_all
    from testbed.report.summary import target_of
    from testbed.report.tables import compared_markdown, show_compared
    from testbed.report.write import csv

    target = target_of(options.loss, options.accuracy)
    found = compare(load_all(options.runs), options.force, options.over, target)
    show_compared(found)
    if options.csv:
        write_whole(options.csv, csv(found.frame))
        print(f"written: {options.csv}")
    if options.markdown:
        write_whole(options.markdown, compared_markdown(found))
        print(f"written: {options.markdown}")
    return 0
