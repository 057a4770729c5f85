"""The command `testbed`; thin: a module a sub-command, each of which parses its options and calls one function.

Exit codes: 0 fine, 1 the run failed or was stopped, 2 the input is wrong.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from testbed import __version__
from testbed.cli import (
    bench,
    bytes,
    clean,
    compare,
    doctor,
    exec,
    experiments,
    explain,
    fidelity,
    mark,
    plan,
    plot,
    profile,
    report,
    run,
    sensitivity,
    shell,
    systems,
    timeline,
    trace,
    tune,
)
from testbed.cli.options import Commands, Parser
from testbed.emulation.sandbox import find_administrators_tools
from testbed.errors import InputError, TestbedError, of_file

DESCRIPTION = "Train one model across emulated data centers and compare geo-distributed training systems."
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no fault of what was asked for
COMMANDS = (
    run,
    experiments,
    systems,
    exec,
    shell,
    mark,
    plan,
    plot,
    compare,
    report,
    explain,
    timeline,
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

atexit.register(gc.freeze)  # or the interpreter, which ends next, looks through torch's objects again and again: 0.6 s


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Whatever ends it is one line on standard error."""
    _write_whatever_comes()
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        check_words(given)
        options = parsed(given)
        find_administrators_tools()
        code = options.command(options)
        sys.stdout.flush()
        return code
    except TestbedError as error:
        if not error.told:
            _say(f"error: {error}")
            _log_notes(error)
        return error.exit_code
    except KeyboardInterrupt:
        _say("stopped")
        return 1
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        _drop(sys.stdout)
        return 1
    except OSError as error:
        _drop(sys.stdout)
        no_room = error.errno in OUT_OF_ROOM
        _say(
            f"error: {of_file(error, 'standard output' if no_room else None)}"
        )  # files are named where they are written
        return 1 if no_room else 2
    except SystemExit:  # of --help
        _drop(sys.stdout)
        raise


def check_words(given: Sequence[str]) -> None:
    """Raise InputError where a word of the command line is no text, which no record could hold."""
    for word in given:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode(errors="surrogateescape")
            raise InputError(f"{shown!r}: not {sys.getfilesystemencoding()}; rename it, or change LC_ALL") from None


def _write_whatever_comes() -> None:
    """Let text that the terminal's encoding lacks appear in escapes, rather than end what goes on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(line: str) -> None:
    if sys.stderr is None:  # closed by whoever started this
        return
    with suppress(OSError):  # nobody can be told
        print(f"testbed: {line}", file=sys.stderr)
    _drop(sys.stderr)  # some Pythons keep the line, and would exit with 120 for it


def _drop(stream: TextIO) -> None:
    """Let a stream to which nothing more can be written lead nowhere, so that its end is no error."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
    with suppress(OSError):
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="testbed", description=DESCRIPTION, epilog="example: testbed run cifarnet")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        each.add(Commands(commands))
    return parser
