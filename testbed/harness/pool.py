"""Independent work in processes of its own, several at once, stopped as cleanly as one process is.

`testbed.harness.cluster` does the same errands on other machines.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from testbed import plugins
from testbed.errors import Interrupted, RunError, TestbedError, as_typed, of_file
from testbed.fabrics.registry import Renamed

AGAIN_S = 0.02  # until an interrupt that Python has dropped comes again
SAFE_PATH = "PYTHONSAFEPATH"  # as `python -P`, for processes whose command line is not ours
_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Errand:
    """A piece of work that needs nothing of any other: `work(folder, experiment, *arguments)`.

    Parameters
    ----------
    label : what it is, for those who watch: "terngrad, seed 0"
    work : a function that other processes can import
    folder : what it reads and writes, and nobody else; it may be made elsewhere, and brought here when it is done
    experiment : as plain data
    """

    label: str
    work: Callable[..., None]
    folder: Path
    experiment: dict[str, Any]
    arguments: tuple[Any, ...] = ()

    def attempt(self, folder: Path) -> TestbedError | None:
        """Do it in a folder, which is another one on another machine; what it failed with."""
        try:
            self.work(folder, self.experiment, *self.arguments)
        except KeyboardInterrupt:
            return Interrupted("stopped")
        except TestbedError as error:
            return error
        except OSError as error:
            return RunError(of_file(error))
        except (Exception, SystemExit) as error:
            typed = as_typed(error, self.label, RunError)
            assert isinstance(typed, TestbedError)
            return typed
        return None


RunAll = Callable[[Sequence[Errand]], None]
"""Does errands, several at once; when one fails no other begins, and the failure is raised (RunError)."""


@dataclass(frozen=True)
class Elsewhere:
    """What a cluster that was joined does for a run: it plays whole systems and seeds, or has the roles of one.

    Parameters
    ----------
    run_all : does errands on its nodes
    renamed : an experiment as its nodes find it, for a fabric whose roles stand there
    """

    run_all: RunAll | None = None
    renamed: Renamed | None = None


HERE = Elsewhere()


def run_all(errands: Sequence[Errand], processes: int) -> None:
    """Do each of `errands` in a new process, at most `processes` at a time, in order.

    When one fails, or this process is asked to stop (KeyboardInterrupt), no further one begins; those under way are
    stopped with SIGTERM, and once they have ended the failure is raised.

    Raises
    ------
    RunError
        What the work raised, or a process died without saying why (e.g. killed for lack of memory).
    """
    left = list(errands)
    running: dict[Connection, BaseProcess] = {}
    try:
        while left or running:
            while left and len(running) < processes:
                ours, process = _start(left.pop(0), processes)
                running[ours] = process
            ready = wait(list(running))
            for ours in [each for each in running if each in ready]:
                _end(ours, running.pop(ours))
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _start(errand: Errand, processes: int) -> tuple[Connection, BaseProcess]:
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_play, args=(theirs, errand, processes), daemon=True)
    with _no_current_folder(), _no_needless_script(errand), _deaf_to_the_terminal():
        process.start()
    theirs.close()
    return ours, process


@contextmanager
def _deaf_to_the_terminal() -> Iterator[None]:
    """What starts meanwhile never hears of a Ctrl-C, which a terminal sends to all: it is stopped by this process.

    Until it had its own handlers it would say where it was instead. This process hears of one that comes meanwhile.
    """
    resource_tracker.ensure_running()  # which lets signals through once it has begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _no_current_folder() -> Iterator[None]:
    """What starts meanwhile looks for modules where this process does, and until it knows that, not in its folder."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def _no_needless_script(errand: Errand) -> Iterator[None]:
    """What starts meanwhile imports the script that this process runs only where it needs what is defined there.

    Else each new process would do all again that a script without `if __name__ == "__main__":` does.
    """
    script = sys.modules["__main__"]
    if not plugins.interactive().names and errand.work.__module__ != "__main__":
        sys.modules["__main__"] = ModuleType("__main__")  # of no file
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _play(answer: Connection, errand: Errand, processes: int) -> None:
    """The new process: do the work, say how it went, end; end as well when the one that started it is gone.

    Its tests take its share of the cores: threads that wait for each other while another of the `processes` has their
    core made a test take four times as long.
    """
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    _answer(answer, errand.attempt(errand.folder))


def _answer(answer: Connection, error: TestbedError | None) -> None:
    """Say how it went; where the one that is to hear it was killed, a failure is said to the user."""
    if _parent().is_alive():
        with suppress(BrokenPipeError):
            return answer.send(error)
    if error is not None:
        print(f"testbed: {error}", file=sys.stderr)


def _parent() -> Any:
    return multiprocessing.parent_process()


def _stop_with_parent() -> None:
    _parent().join()
    os.kill(os.getpid(), signal.SIGTERM)


def _why(exitcode: int | None) -> str:
    """What most likely ended a process that gave no answer."""
    if exitcode is not None and exitcode > 0:  # it ended by itself, before it had begun its work
        return 'in a script, call testbed.run below `if __name__ == "__main__":`, or give jobs=1'
    return "is there memory for --jobs?"


def _end(ours: Connection, process: BaseProcess) -> None:
    """Take the answer of a process that has ended; raise what it failed with."""
    try:
        error = ours.recv()
    except EOFError:
        process.join()
        died = f"a process of the run died (exit code {process.exitcode})"
        raise RunError(f"{died}; {_why(process.exitcode)}") from None
    finally:
        ours.close()
    process.join()
    if error is not None:
        raise error


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does, where this is the thread that signals come to.

    Python drops an exception that comes while it deletes an object, and with it the interrupt; here it comes again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def dropped(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        else:
            tell(what)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    tell, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = tell
        for number, handler in before.items():
            signal.signal(number, handler)
