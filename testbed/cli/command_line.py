"""The command `testbed`; thin: a module a sub-command, each of which parses its options and calls one function.

Exit codes: 0 fine, 1 the run failed or was stopped, 2 the input is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from testbed import __version__
from testbed.cli import (
    bench,
    bytes,
    clean,
    compare,
    doctor,
    exec,
    fidelity,
    mark,
    plan,
    plot,
    profile,
    report,
    run,
    sensitivity,
    shell,
    trace,
    tune,
)
from testbed.cli.options import Commands
from testbed.emulation.sandbox import find_administrators_tools
from testbed.errors import TestbedError

DESCRIPTION = "Train one model across emulated data centers and compare geo-distributed training systems."
COMMANDS = (
    run,
    exec,
    shell,
    mark,
    plan,
    plot,
    compare,
    report,
    tune,
    sensitivity,
    bytes,
    profile,
    trace,
    fidelity,
    bench,
    doctor,
    clean,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parsed(list(sys.argv[1:] if argv is None else argv))
    find_administrators_tools()
    try:
        return options.command(options)
    except TestbedError as error:
        if not error.told:
            print(f"testbed: error: {error}", file=sys.stderr)
            _log_notes(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("testbed: stopped", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; what stands after `--` is a program of the user's, not parsed."""
    parser = _parser()
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    if cut < len(given):
        if "program" not in options:
            parser.error("only `testbed exec` takes a command after --")
        options.program = given[cut + 1 :]
    return options


def _log_notes(error: TestbedError) -> None:
    """A role's traceback goes to the log on standard error, below the one line."""
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description=DESCRIPTION, epilog="example: testbed run cifarnet")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        each.add(Commands(commands))
    return parser
