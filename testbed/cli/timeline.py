"""The sub-command `testbed timeline`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.record.place import check

EXAMPLES = f"""\
examples:
  testbed timeline {RUN} weightgrad -o weightgrad.json
  testbed timeline {RUN} --seed 1 -o baseline.perfetto-trace
  testbed plot {RUN} --kind timeline

A file called *.perfetto-trace is one of Perfetto's own, any other is JSON. Open it at https://ui.perfetto.dev or
https://www.speedscope.app (both read it in the browser, nothing is uploaded), or in Chrome at chrome://tracing."""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "write a system's first steps as a trace file for Perfetto, Chrome or speedscope"
    command = commands.add("timeline", _timeline, text, EXAMPLES)
    command.add_argument("run", type=Path, help="results/<target>/<run>")
    command.add_argument("system", nargs="?", default="", help="one of the run's (its first)")
    command.add_argument("--seed", type=int, help="one of the run's (its first)")
    command.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="where it goes (RUN/timeline-SYSTEM.json); .perfetto-trace: as protocol buffers",
    )


def _timeline(options: argparse.Namespace) -> int:
    check(options.run)
    import msgspec

    from testbed.files import write_whole
    from testbed.record.reader import load
    from testbed.report.numbers.timeline import chosen
    from testbed.report.perfetto_trace import SUFFIXES, perfetto_trace
    from testbed.report.trace_events import trace_events

    run = load(options.run)
    it = chosen(run, options.system, options.seed)
    [result] = [one for one in run.results if (one.system, one.seed) == (it.system, it.seed)]
    path = options.out or options.run / f"timeline-{it.system}.json"
    content = trace_events(it, result.links)
    write_whole(path, perfetto_trace(content) if path.suffix in SUFFIXES else msgspec.json.encode(content))
    print(f"written: {path}: {len(it.steps_s)} steps, {len(it.computed)} computations, {len(it.messages)} messages")
    return 0
