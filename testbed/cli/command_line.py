"""The command `testbed`; thin: a module a sub-command, each of which parses its options and calls one function.

Exit codes: 0 fine, 1 the run failed or was stopped, 2 the input is wrong.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
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
from testbed.errors import OUT_OF_ROOM, InputError, RunError, TestbedError, as_typed, of_file

DESCRIPTION = "Train one model across emulated data centers and compare geo-distributed training systems."
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
    """Run the command line; returns the exit code. Whatever ends it is one line on standard error, the last one."""
    _lead_somewhere()
    _write_whatever_comes()
    given = list(sys.argv[1:] if argv is None else argv)
    begun = False
    try:
        check_words(given)
        options = parsed(given)
        find_administrators_tools()
        begun = True
        code = options.command(options)
        sys.stdout.flush()
        _drop(sys.stderr)
        return code
    except TestbedError as error:
        return _answer(error)
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
    except SystemExit as ended:  # of --help, or of rich, whose reader has gone
        _drop(sys.stdout)
        if begun and not ended.code:
            return _answer(as_typed(ended, "code of a plug-in's, or of the testbed's, has left the program", RunError))
        raise
    except Exception as error:  # of a plug-in's, as far as nobody below says what it is of
        return _answer(as_typed(error, "an error of a plug-in's, or of the testbed's", RunError))


def _answer(error: BaseException) -> int:
    """Tell of an error, and of the traceback that was a role's first; the exit code."""
    assert isinstance(error, TestbedError)
    if not error.told:
        _log_notes(error)
        _say(f"error: {error}")
    return error.exit_code


def check_words(given: Sequence[str]) -> None:
    """Raise InputError where a word of the command line is no text, which no record could hold."""
    for word in given:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode(errors="surrogateescape")
            raise InputError(f"{shown!r}: not {sys.getfilesystemencoding()}; rename it, or change LC_ALL") from None


def _lead_somewhere() -> None:
    """Have an output where whoever started this has closed it: a record would get its number, and what is printed."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lasts


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


def _drop(stream: TextIO | None) -> None:
    """Let a stream to which nothing more can be written lead nowhere, so that its end is no error."""
    if stream is None:
        return
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
    """A role's traceback goes to the log on standard error, above the one line."""
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
