"""The command `testbed`; thin: every sub-command parses its options and calls one function.

Exit codes: 0 fine, 1 the run failed or was stopped, 2 the input is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import __version__, cli_bench, cli_fidelity, cli_network, cli_results
from testbed.errors import InputError, TestbedError

DESCRIPTION = "Train one model across emulated data centers and compare geo-distributed training systems."
RUN_EXAMPLES = """\
examples:
  testbed run cifarnet                                     every system of the experiment, on the best fabric
  testbed run cifarnet --systems baseline,weightgrad --seeds 0,1,2
  testbed run cifarnet --fabric virtual --set compute.device=m60 --set training.steps=400
  testbed run my.toml --scale paper --device cuda
  testbed run --resume results/cifarnet/20260101-120000-virtual
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    _find_administrators_tools()
    try:
        return options.command(options)
    except TestbedError as error:
        print(f"testbed: error: {error}", file=sys.stderr)
        _log_notes(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("testbed: stopped", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _find_administrators_tools() -> None:
    """Look for programs in the sbin folders as well: `tc` is there on Debian, and an ordinary user's PATH is not."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*path, "/usr/sbin", "/sbin"]))


def _log_notes(error: TestbedError) -> None:
    """A role's traceback goes to the log on standard error, below the one line."""
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description=DESCRIPTION, epilog="example: testbed run cifarnet")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], text: str, epilog: str | None = None
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[:1].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=epilog,
        )
        sub.set_defaults(command=function)
        return sub

    run = command("run", _run, "run an experiment and report on it", epilog=RUN_EXAMPLES)
    run.add_argument("file", nargs="?", help="an experiment: its name in experiments/, or a TOML file")
    run.add_argument("--fabric", choices=("auto", "mininet", "virtual"), help="default: the file's, which is auto")
    run.add_argument("--systems", type=_names, default=(), metavar="A,B", help="run only these systems")
    run.add_argument("--seeds", type=_numbers, default=(), metavar="0,1", help="run each system with these seeds")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="change a key of the file, e.g. training.steps=50; may be repeated",
    )
    run.add_argument("--scale", default="", help="take the file's [scale.NAME], e.g. paper")
    run.add_argument("--trace", metavar="CSV", help="let the WAN's capacity follow a trace, see topologies/traces/")
    run.add_argument("--device", default="cpu", help="where the math runs: cpu or cuda")
    run.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where records go (results)")
    run.add_argument(
        "--no-gate", action="store_true", help="do not probe the emulated links before the run; it is recorded"
    )
    run.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        help="systems and seeds at once, on the virtual fabric with a modelled device (default: one a core)",
    )
    run.add_argument("--tensorboard", action="store_true", help="write scalars, too: tensorboard --logdir RUN")
    run.add_argument("--resume", type=Path, metavar="RUN", help="go on with an interrupted run")

    text = "delete what killed runs have left: half-written checkpoints, empty folders"
    clean = command("clean", _clean, text, "example: testbed clean --out /data/results")
    clean.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where records are (results)")
    text = "say what this machine can run, need by need, and what to do about what it lacks"
    doctor = command("doctor", _doctor, text, "exits with 0 where some fabric can run, else with 1")
    doctor.add_argument("--json", action="store_true", help="as JSON, for scripts")
    cli_network.add_commands(commands)
    cli_fidelity.add(command)
    cli_bench.add(command)
    cli_results.add(command)
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in _names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers, e.g. 0,1,2") from None


def _run(options: argparse.Namespace) -> int:
    from testbed.launch import launch, relaunch

    if options.resume is not None:
        if options.file:
            raise InputError("give either an experiment or --resume RUN, not both")
        _refuse_beside_resume(options)
        return relaunch(options.resume, options.jobs)
    if not options.file:
        raise InputError("name an experiment, e.g. testbed run cifarnet; see experiments/")
    overrides = list(options.overrides)
    if options.fabric:
        overrides.append(f"run.fabric={options.fabric}")
    if options.no_gate:
        overrides.append("run.gate=false")
    if options.trace:
        overrides.append(f"topology.trace={options.trace}")
    return launch(
        options.file,
        overrides,
        options.scale,
        options.systems,
        options.seeds,
        options.device,
        options.out,
        options.jobs,
        options.tensorboard,
    )


def _refuse_beside_resume(options: argparse.Namespace) -> None:
    """A resumed run goes on as it began: what would change it is refused rather than ignored."""
    given = {
        "--fabric": options.fabric,
        "--systems": options.systems,
        "--seeds": options.seeds,
        "--set": options.overrides,
        "--scale": options.scale,
        "--trace": options.trace,
        "--no-gate": options.no_gate,
        "--device": options.device != "cpu",
        "--out": options.out != Path("results"),
        "--tensorboard": options.tensorboard,
    }
    named = [name for name, value in given.items() if value]
    if named:
        raise InputError(f"{', '.join(named)} cannot go with --resume: a resumed run goes on as it began")


def _doctor(options: argparse.Namespace) -> int:
    from testbed.doctor import report

    return report(options.json)


def _clean(options: argparse.Namespace) -> int:
    from testbed.checkpoint import sweep

    for path in sweep(options.out):
        print(f"deleted {path}")
    return 0
