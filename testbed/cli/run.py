"""The sub-command `testbed run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from testbed.cli.options import (
    Commands,
    add_cluster,
    add_experiment,
    add_faults,
    cluster,
    count,
    names,
    numbers,
    points,
)
from testbed.errors import InputError
from testbed.record.place import check

RUN_EXAMPLES = """\
examples:
  testbed run cifarnet                                     every system of the experiment, on the best fabric
  testbed run cifarnet --systems baseline,weightgrad --seeds 0,1,2
  testbed run cifarnet --fabric virtual --set compute.device=m60 --set training.steps=400
  testbed run cifarnet --sweep topology.profile=weightgrad-ec2,skyplane-22 --sweep training.batch_size=128,512
  testbed run my.toml --scale paper --device cuda
  testbed run systems --timing-only --sizes results/systems/20260101-120000-virtual --set topology.wan_factor=0.5
  testbed run my.toml --ray auto
  testbed run my.toml --fabric cluster --ray 10.0.0.1:6379
  testbed run --resume results/cifarnet/20260101-120000-virtual
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    run = commands.add("run", _run, "run an experiment and report on it", RUN_EXAMPLES)
    add_experiment(run, needed=False)
    run.add_argument(
        "--fabric",
        metavar="NAME",
        help="mininet (emulate the network), virtual (simulate it), cluster (on the nodes of --ray's cluster, over "
        "the real network) or auto; default: the file's, which is auto",
    )
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="a series: one run with each value, e.g. training.batch_size=128,512; of several, with each of the others",
    )
    run.add_argument("--seeds", type=numbers, default=(), metavar="0,1", help="run each system with these seeds")
    run.add_argument("--trace", metavar="CSV", help="let the WAN's capacity follow a trace, see topologies/traces/")
    add_faults(run)
    run.add_argument(
        "--timing-only",
        action="store_true",
        help="charge computations without making them: times and bytes of the same messages, no losses; simulated",
    )
    run.add_argument(
        "--sizes",
        metavar="RUN|SYSTEM=PART",
        help="of a timing-only run, where sizes depend on the data: as in a recorded RUN, or as parts of float32's "
        "bytes, e.g. dgc=0.002,gaia=0.1",
    )
    run.add_argument("--device", default="cpu", help="where the math runs: cpu or cuda")
    run.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where records go (results)")
    run.add_argument(
        "--no-gate", action="store_true", help="do not probe the emulated links before the run; it is recorded"
    )
    run.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="systems and seeds at once, on the virtual fabric with a modelled device (default: one a core)",
    )
    add_cluster(run)
    run.add_argument("--tensorboard", action="store_true", help="write scalars, too: tensorboard --logdir RUN")
    run.add_argument("--quiet", action="store_true", help="no tables at the end")
    run.add_argument("--resume", type=Path, metavar="RUN", help="go on with an interrupted run")


def _run(options: argparse.Namespace) -> int:
    if options.resume is not None:
        if options.file:
            raise InputError("give either an experiment or --resume RUN, not both")
        _refuse_beside_resume(options)
        check(options.resume)
        from testbed.harness.launch import relaunch

        relaunch(options.resume, options.jobs, options.quiet, on=cluster(options))
        return 0
    if not options.file:
        raise InputError("name an experiment, e.g. testbed run cifarnet; see experiments/")
    changes: dict[str, Any] = {}
    if options.fabric:
        changes["run.fabric"] = options.fabric
    if options.no_gate:
        changes["run.gate"] = False
    if options.trace:
        changes["topology.trace"] = options.trace
    if options.timing_only:
        changes["compute.math"] = "none"
    if options.sizes:
        changes["compute.sizes"] = sizes(options.sizes)
    asked = points(options, changes, options.seeds)

    from testbed.experiment import load
    from testbed.harness.launch import Wishes, launch  # torch, matplotlib and more, which a typo need not wait for

    wishes = Wishes(
        target=load.find(options.file).stem,
        device=options.device,
        out=options.out,
        jobs=options.jobs,
        cluster=cluster(options),
        tensorboard=options.tensorboard,
        command=tuple(sys.argv[1:]),
        quiet=options.quiet,
    )
    launch(asked, wishes)
    return 0


def sizes(text: str) -> str | dict[str, float]:
    """A run's folder, or parts by system; InputError where it is neither."""
    if Path(text).is_dir():
        return text
    pairs = [pair.partition("=") for pair in names(text) or [text]]
    try:
        return {system: float(part) for system, _, part in pairs}
    except ValueError:
        raise InputError(f"--sizes: '{text}' is neither a run's folder nor like dgc=0.002,gaia=0.1") from None


def _refuse_beside_resume(options: argparse.Namespace) -> None:
    """A resumed run goes on as it began: what would change it is refused rather than ignored."""
    given = {
        "--fabric": options.fabric,
        "--systems": options.systems,
        "--seeds": options.seeds,
        "--set": options.settings,
        "--sweep": options.sweep,
        "--plugin": options.plugin,
        "--scale": options.scale,
        "--trace": options.trace,
        "--fault": options.fault,
        "--faults": options.faults,
        "--no-gate": options.no_gate,
        "--device": options.device != "cpu",
        "--out": options.out != Path("results"),
        "--tensorboard": options.tensorboard,
        "--timing-only": options.timing_only,
        "--sizes": options.sizes,
    }
    named = [name for name, value in given.items() if value]
    if named:
        raise InputError(f"{', '.join(named)} cannot go with --resume: a resumed run goes on as it began")
