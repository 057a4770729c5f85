"""The sub-command `testbed tune`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from testbed.cli.options import Commands, add_cluster, add_experiment, check_file, cluster, count, names, numbers, one
from testbed.errors import InputError

EPILOG = """\
Every system of the experiment gets the same number of trials. The first is the experiment as it stands; two are drawn
at random, the others proposed by Optuna's Gaussian process, which searches the learning rate (in the long run, that is
over 1 - momentum), the momentum and the system's own main knob. What counts is the time to the experiment's target, on
the virtual fabric; a trial that has taken as long as the best one before it ends there. The trials are kept, a file
(trials.jsonl) for each system and a picture of all: what is stopped goes on where it was, with the same command.
examples:
  testbed tune systems --trials 8 --to systems-tuned.toml
  testbed tune cifarnet --systems baseline,weightgrad --set training.steps=100 --seeds 100,101
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    tune = commands.add("tune", _tune, "find each system its rate and main knobs, with the same budget", EPILOG)
    add_experiment(tune)
    tune.add_argument("--trials", type=count, default=8, metavar="N", help="of each system (8)")
    tune.add_argument("--seeds", type=numbers, default=(100,), metavar="100", help="of trials; not the file's (100)")
    tune.add_argument("--fixed", type=names, default=(), metavar="KNOB,...", help="systems' own that stay as they are")
    tune.add_argument("--jobs", type=count, metavar="N", help="systems at once (default: one a core)")
    add_cluster(tune)
    tune.add_argument("--out", type=Path, metavar="DIR", help="where trials are kept (results/tune/<experiment>)")
    tune.add_argument("--to", type=Path, metavar="FILE", help="the experiment to write (<experiment>-tuned.toml)")


def _tune(options: argparse.Namespace) -> int:
    check_file(options)
    from testbed.experiment import load
    from testbed.experiment.assembly import Assembly
    from testbed.fabrics.registry import choose, virtual
    from testbed.files import write_whole
    from testbed.harness import cluster as machines
    from testbed.harness import session, tune
    from testbed.report.numbers.asked import Target
    from testbed.report.numbers.tables import markdown_table
    from testbed.report.pictures import search
    from testbed.report.pictures.style import save

    experiment = one(options)
    kind, _ = choose(virtual(), [experiment])
    try:
        import optuna  # noqa: F401
        import scipy  # type: ignore[import-untyped] # noqa: F401 - of Optuna's Gaussian process
        import tomli_w  # noqa: F401
    except ImportError as error:
        raise InputError(f"testbed tune needs {error.name}: pip install 'geo-testbed[tune]'") from None
    metric = session.target_metric(experiment, Assembly(experiment, allow_download=True, on_notice=print).workload)
    target = Target.asked(experiment.target, metric)
    name = load.find(options.file).stem
    budget = tune.Budget(options.trials, options.seeds, options.fixed)
    folder = options.out or Path("results", "tune", name)
    on, jobs = cluster(options), options.jobs or len(os.sched_getaffinity(0))
    machines.check(on, kind, [experiment])
    with machines.joined(on, kind, [experiment], "cpu", print) as elsewhere:
        found = tune.tune(experiment, kind.name, budget, folder, jobs, elsewhere.run_all)
    to = options.to or Path(f"{name}-tuned.toml")
    write_whole(to, tune.tuned(experiment, found, budget, target))
    cells = [
        [system, trials[0].said, tune.best(trials).said, str(tune.best(trials).options)]
        for system, trials in found.items()
    ]
    print(markdown_table(["system", "as it stood", "tuned", "with"], cells))
    picture = folder / "search.png"
    save(search.draw(tune.frame(tune.searched(folder)), str(target)), picture)
    print(f"written: {to}\npicture: {picture}")
    return 0
