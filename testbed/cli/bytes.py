"""The sub-command `testbed bytes`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import RUN, Commands


def add(commands: Commands) -> None:
    """Add the sub-command."""
    text = "show what each role of a run sends a step, against float32 and against the baseline"
    traffic = commands.add("bytes", _bytes, text, f"example: testbed bytes {RUN}")
    traffic.add_argument("run", type=Path, help="results/<target>/<run>")


def _bytes(options: argparse.Namespace) -> int:
    from testbed.record.reader import load
    from testbed.report.summary import model_name
    from testbed.report.tables import markdown_table
    from testbed.report.traffic import rows, traffic
    from testbed.workloads.data.base import source
    from testbed.workloads.models.base import parameter_count

    run = load(options.run)
    parameters = parameter_count(model_name(run.info), source(run.info.data.dataset).stand_in.format.classes)
    print(markdown_table(*rows(traffic(run), parameters)))
    return 0
