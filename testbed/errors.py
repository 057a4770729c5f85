"""Every error a user can meet, each with the exit code the command line answers it with.

Exit codes: 0 fine, 1 the run failed, 2 the input is wrong. A message is one line that names the file, key,
link or role and says what to do.
"""

from __future__ import annotations

import difflib
import errno
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no fault of what was asked for
LISTED = 64  # names, in a line
COMPARED = 1_000  # names, or letters of one, that are compared


class TestbedError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1
    told = False  # whether the user has been told already, by another process
    __test__ = False  # the name begins with "Test"; pytest would otherwise try to collect it


class InputError(TestbedError):
    """The user's input is wrong: a file, a key, an option, a data set, a machine that lacks something asked for.

    What it quotes may hold anything: line ends and control characters appear as escapes.
    """

    exit_code = 2

    def __init__(self, line: str) -> None:
        super().__init__("".join(each if each.isprintable() else repr(each)[1:-1] for each in line))


class RunError(TestbedError):
    """A run started and could not go on."""


class Interrupted(RunError):
    """The run was asked to stop (Ctrl-C, SIGTERM); what was recorded stays and can be resumed."""


class PeerTimeout(RunError):
    """A message did not come within the time the role was ready to wait."""


class PeerLost(RunError):
    """The connection to a peer is gone."""


class RoleDied(RunError):
    """A role ended with an exception.

    Attributes
    ----------
    waited : whether it waited for another in vain
    gone : whose process died
    diverged : whether it had a vector to send that was not finite (`NotFinite`)
    """

    def __init__(self, line: str, waited: bool = False, gone: str = "", diverged: bool = False) -> None:
        super().__init__(line)
        self.waited, self.gone, self.diverged = waited, gone, diverged


class ProtocolError(RunError):
    """Two roles disagree about what comes next: a bug in a training system."""


class NetworkError(RunError):
    """The emulated network is not, or is no longer, what the profile says."""


class CodecError(TestbedError):
    """A tensor that cannot be encoded (NaN, infinity) or a message that cannot be decoded; names the layer."""


class NotFinite(CodecError):
    """A vector that is to be encoded holds NaN or infinity: training has diverged, if its rate is too high, say."""

    @classmethod
    def of(cls, what: str) -> NotFinite:
        """The error of a layer or a signal, as it is named."""
        return cls(f"{what}: NaN or infinity among its values")


def of_file(error: OSError, place: object = None) -> str:
    """What the system says of a file, in one line that names it; else `place`, where it must be."""
    named = place if error.filename is None else error.filename
    said = error.strerror or str(error)
    return said if named is None else f"{named}: {said}"


def as_typed(error: BaseException, what: str, kind: type[TestbedError]) -> BaseException:
    """What `error`, raised by code that anybody may have written, is to the user: a line that says what it is of.

    Errors that are meant for the user stay as they are, and so do those of a disk that is full. The traceback is a
    note, for the code's author.
    """
    if isinstance(error, TestbedError) or (isinstance(error, OSError) and error.errno in OUT_OF_ROOM):
        return error
    said = of_file(error) if isinstance(error, OSError) else " ".join(str(error).split())
    typed = kind(f"{what}: {type(error).__name__}{': ' if said else ''}{said}")
    typed.add_note("".join(traceback.format_exception(error)).rstrip())
    return typed


@contextmanager
def code_of(what: str, kind: type[TestbedError] = InputError) -> Iterator[None]:
    """Within it code runs that a plug-in may have brought: whatever it raises, an `exit()` too, is one line.

    `what` begins it: "model 'mine'".
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        typed = as_typed(error, what, kind)
        if typed is error:
            raise
        raise typed from error


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Within it, an InputError begins with `where`; its cause and its notes stay."""
    try:
        yield
    except InputError as error:
        named = InputError(f"{where}: {error}")
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named from error.__cause__


def nearest(found: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'? known: a, b, x" (the question only when something is near)."""
    names = sorted(known)
    close = difflib.get_close_matches(found[:COMPARED], names[:COMPARED], n=1, cutoff=0.6)
    question = f"; did you mean '{close[0]}'?" if close else ""
    return f"{question} known: {listed(names)}" if question else f"; known: {listed(names)}"


def listed(names: Sequence[str]) -> str:
    """The names, the first of them where they are many: what a file holds may be without end, and a line is not.

    Each in quotes where one has a comma of its own.
    """
    if any("," in name for name in names):
        names = [f"'{name}'" for name in names]
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
