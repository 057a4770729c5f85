"""The sub-command `testbed bytes`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands
from testbed.errors import InputError
from testbed.record.place import check


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "show what each role of a run sends a step, against float32 and against the baseline"
    traffic = commands.add("bytes", _bytes, text, f"example: testbed bytes {RUN}")
    traffic.add_argument("run", type=Path, help="results/<target>/<run>")


def _bytes(options: argparse.Namespace) -> int:
    check(options.run)
    from testbed.record.info import FILE_NAME
    from testbed.record.reader import load
    from testbed.report.numbers.tables import markdown_table
    from testbed.report.numbers.traffic import rows, traffic
    from testbed.workloads.workload import parameter_count_of

    run = load(options.run)
    if not run.info.parameters and not run.info.experiment:
        raise InputError(f"{run.folder / FILE_NAME}: says nothing of the run's model; put the file back as it was")
    sent = traffic(run)
    if sent.empty:
        raise InputError(f"{run.folder}: records no messages; a run does when its first run.checkpoint_steps are over")
    parameters = run.info.parameters or parameter_count_of(run.info.experiment)
    print(markdown_table(*rows(sent, parameters)))
    return 0
