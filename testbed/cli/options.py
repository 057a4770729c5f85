"""How sub-commands are declared, and the kinds of values that several of them take."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from testbed.errors import InputError, nearest

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from testbed.experiment.load import Given, Point
    from testbed.experiment.schema import Experiment
    from testbed.harness.cluster import Cluster

RUN = "results/cifarnet/20260101-120000-virtual"  # in examples
# Options that are a key's own, where a command makes them changes.
SHORT = {
    "--fabric": "run.fabric",
    "--trace": "topology.trace",
    "--sizes": "compute.sizes",
    "--device": "compute.device",
    "--lan": "topology.lan_mbit",
    "--batch": "training.batch_size",
    "--profile": "topology.profile",
    "--regions": "topology.regions",
    "--workers": "topology.workers_per_region",
    "--server": "topology.server_region",
    "--model": "model.name",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are the command's: one line that says what was meant, and nothing else."""

    def error(self, message: str) -> NoReturn:
        """Raise InputError; a command that is none, or a value that is not one of a few, is said with the nearest."""
        if choice := re.fullmatch(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            what, found, known = choice.groups()
            names = re.findall(r"[^', ]+", known)
            message = f"{what.lower()} '{found}' is unknown{nearest(found, names)}"
        raise InputError(f"{message} ({self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's; what the command does not know is said here, where its options are known."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            unknown = next((word for word in left if word.startswith("-")), left[0]).partition("=")[0]
            if "program" in found and not left[0].startswith("-"):
                self.error(f"{left[0]} is unknown; a command stands after --, e.g. -- {' '.join(left)}")
            like = difflib.get_close_matches(unknown, self._option_string_actions, n=1)
            self.error(f"{unknown} is unknown{f'; did you mean {like[0]}?' if like else ''}")
        return found, left


class Commands:
    """The sub-commands of one level: of `testbed`, or of a command that has sub-commands itself."""

    def __init__(self, commands: _SubParsersAction[Parser]) -> None:
        self._commands = commands

    def add(
        self, name: str, function: Callable[[argparse.Namespace], int], text: str, epilog: str | None = None
    ) -> Parser:
        """Declare a sub-command; `text` says in a few words what it does, `epilog` shows examples."""
        parser = self._commands.add_parser(
            name,
            help=text,
            description=text[:1].upper() + text[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(command=function)
        return parser

    def group(self, name: str, text: str, epilog: str | None = None) -> Commands:
        """Declare a sub-command that has sub-commands."""
        parser = self._commands.add_parser(
            name, help=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        return Commands(parser.add_subparsers(required=True, metavar="COMMAND"))


def add_experiment(parser: argparse.ArgumentParser, needed: bool = True) -> None:
    """Declare what names an experiment and changes it: the file, --systems, --set, --plugin and --scale."""
    parser.add_argument(
        "file",
        nargs=None if needed else "?",
        help="an experiment: its name in experiments/, or a TOML file",
    )
    parser.add_argument("--systems", type=some, default=(), metavar="A,B", help="only these systems")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change a key of the file, e.g. training.steps=50; may be repeated",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE|MODULE",
        help="Python with systems, models, data sets or others of your own, e.g. ./mine.py; may be repeated",
    )
    parser.add_argument("--scale", default="", help="take the file's [scale.NAME], e.g. paper")


def check_file(options: argparse.Namespace) -> None:
    """Raise InputError unless there is the experiment that is named: asked first, a typo waits for nothing else."""
    from testbed.experiment import load

    if options.file:
        load.find(options.file)


FAULT_HELP = 'e.g. "partition us-west-1 at 20s for 30s" or "slow */w0 factor=3 at 0s" (docs/faults.md); may be repeated'


def add_faults(parser: argparse.ArgumentParser) -> None:
    """Declare what goes wrong on purpose: --fault and --faults."""
    parser.add_argument("--fault", action="append", default=[], metavar="SENTENCE", help=FAULT_HELP)
    parser.add_argument("--faults", action="append", default=[], type=Path, metavar="FILE", help="TOML with [[faults]]")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Declare where else to play: --ray and --storage."""
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="play on the nodes of a Ray cluster: HOST:PORT, or auto for this machine's"
    )
    parser.add_argument(
        "--storage",
        type=Path,
        metavar="DIR",
        help="with --ray: a folder that all nodes see, for checkpoints, so that what a dying node played goes on",
    )


def cluster(options: argparse.Namespace) -> Cluster | None:
    """The cluster that the options of `add_cluster` name; InputError where they contradict each other."""
    if options.ray is None:
        if options.storage:
            raise InputError("--storage is for a cluster's nodes: it goes with --ray")
        return None
    if options.jobs:
        raise InputError("give either --jobs or --ray: how much a cluster does at once is up to its nodes")
    from testbed.harness.cluster import Cluster

    return Cluster(options.ray, options.storage)


def faults(options: argparse.Namespace) -> list[Given]:
    """What the options of `add_faults` name, as `load` takes it."""
    from testbed.experiment import load

    of_files = [load.called(load.faults_in(path), f"{path}: ") for path in options.faults]
    return [*chain.from_iterable(of_files), *load.called(options.fault, "--fault ")]


def points(
    options: argparse.Namespace, changes: Mapping[str, Any] | None = None, seeds: Sequence[int] = ()
) -> list[Point]:
    """The experiment that the options of `add_experiment` name, with further changes; InputError as `load` raises."""
    from testbed.experiment import load, sweeps

    settings, axes = load.parse_changes(options.settings), sweeps.parse(getattr(options, "sweep", ()))
    more = faults(options) if hasattr(options, "faults") else ()
    swept = {"--sweep": [key for axis in axes for key in axis]}
    seeded = {"--seeds": ["run.seeds"]} if seeds else {}  # a command's own --seeds may be others: those of trials
    by = given_by({"--set": [*settings], **swept, **short(options, changes or {}), **seeded})
    asked = {**settings, **(changes or {})}
    return load.load(options.file, asked, options.scale, options.systems, seeds, options.plugin, more, axes, by)


def short(options: argparse.Namespace, keys: Collection[str]) -> dict[str, list[str]]:
    """The options of `SHORT` that were given and stand for one of `keys`, each with its key."""
    given = [option for option in SHORT if getattr(options, option[2:], None) not in (None, "", ())]
    return {option: [SHORT[option]] for option in given if SHORT[option] in keys}


def given_by(ways: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By key the option that gives it, of options with the keys that each gives; InputError where two give one."""
    by: dict[str, str] = {}
    for option, keys in ways.items():
        for key in keys:
            if by.setdefault(key, option) != option:
                raise InputError(f"{key} is given by {by[key]} and by {option}: which of them?")
    return by


def one(options: argparse.Namespace, changes: Mapping[str, Any] | None = None) -> Experiment:
    """The only experiment that they name, with further changes; InputError where that is a series."""
    found = points(options, changes)
    if len(found) > 1:
        keys = ", ".join(key for axis in found[0].place for key in axis)
        raise InputError(
            f"{options.file}: a series of {len(found)} runs; set its swept keys to take one of them: {keys}"
        )
    return found[0].experiment


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


def some(text: str) -> tuple[str, ...]:
    """The same of an option that takes all where it is left out: of none it would, too."""
    if not (found := names(text)):
        raise argparse.ArgumentTypeError(f"'{text}' names none; leave the option out for all")
    return found


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in some(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers, e.g. 0,1,2") from None
