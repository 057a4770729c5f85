"""The sub-command `testbed sensitivity`."""

from __future__ import annotations

import argparse
from pathlib import Path

from testbed.cli.options import Commands, add_experiment, check_file, count, one, some
from testbed.errors import InputError, nearest
from testbed.files import write_whole

EPILOG = """\
One thing after another is varied: the LAN's goodput, the WAN's goodput and round trip, the device, the batch. One
short run of every system computes, on the virtual fabric with a modelled device; all others are timing-only and take
the sizes of messages from it. What is mapped is the speedup of a step over the baseline's; it says nothing of how many
steps a target takes. What is stopped goes on with the same command.
examples:
  testbed sensitivity cifarnet
  testbed sensitivity systems --systems baseline,terngrad,dgc,gaia,weightgrad,diloco --axes lan,wan
"""


def add(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add("sensitivity", _sensitivity, "map how speedups depend on network, device and batch", EPILOG)
    add_experiment(parser)
    parser.add_argument("--axes", type=some, default=(), metavar="A,B", help="of lan, wan, rtt, device, batch (all)")
    parser.add_argument("--steps", type=count, default=20, metavar="N", help="of each run; the second half counts (20)")
    parser.add_argument("--jobs", type=count, metavar="N", help="systems at once (default: one a core)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where it is kept (results/sensitivity/<experiment>)")


def _sensitivity(options: argparse.Namespace) -> int:
    check_file(options)
    from testbed.experiment import load
    from testbed.experiment.assembly import Assembly
    from testbed.harness import sensitivity
    from testbed.report import varied
    from testbed.report.pictures import sensitivity as picture
    from testbed.report.pictures.style import save

    axes = {axis.name: axis for axis in sensitivity.AXES}
    for name in options.axes:
        if name not in axes:
            raise InputError(f"--axes {name}: no such axis{nearest(name, axes)}")
    experiment, target = one(options), load.find(options.file).stem
    Assembly(experiment, allow_download=True, on_notice=print).workload  # noqa: B018 - data is fetched here
    folder = options.out or Path("results", "sensitivity", target)
    chosen = sensitivity.fitting(experiment, [axes[name] for name in dict.fromkeys(options.axes or axes)], print)
    frame = sensitivity.play(experiment, chosen, options.steps, folder, options.jobs)
    stands = {
        "lan": experiment.plan.profile.lan.goodput_mbit,
        "wan": 1.0,
        "rtt": 1.0,
        "device": sensitivity.on_virtual(experiment).compute.device,
        "batch": experiment.training.batch_size,
    }
    save(
        picture.draw(frame, chosen, stands, f"{target}: speedup of a step over the baseline's"),
        folder / "sensitivity.png",
    )
    write_whole(folder / "sensitivity.md", varied.markdown(frame, chosen))
    print(frame.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    print(f"table:   {folder / sensitivity.TABLE}\npicture: {folder / 'sensitivity.png'}")
    return 0
