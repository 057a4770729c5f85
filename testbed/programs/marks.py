"""Marks that a program sets in the record of its network: "epoch 3", "here the server was lost".

Each host has a named pipe, whose path its programs find in TESTBED_MARKS; each line that somebody writes into it
becomes an event at the moment it is read. `testbed mark TEXT` writes one.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from testbed.errors import InputError
from testbed.record.events import Mark
from testbed.wan.plan import label

VARIABLE = "TESTBED_MARKS"
FOLDER = Path("/run/testbed/marks")  # the sandbox has a /run of its own
LONGEST, MOST = 200, 10_000  # characters of a mark, marks that are kept
READ_BYTES = 1 << 16


def pipe_of(host: str, folder: Path = FOLDER) -> Path:
    """The pipe of a host."""
    return folder / label(host)


def write(text: str) -> None:
    """Set a mark, from a program that the testbed has started.

    Raises
    ------
    InputError
        This is no such program, or it has outlived its network.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        raise InputError(
            f"{VARIABLE} is not set; marks are for programs that `testbed exec` or `testbed shell` started"
        )
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; nobody reads marks there") from None
    try:
        os.write(pipe, (_clean(text) + "\n").encode())
    finally:
        os.close(pipe)


@contextmanager
def kept(hosts: Iterable[str], record: Callable[[Mark], None], now_s: Callable[[], float]) -> Iterator[None]:
    """Within it, what the pipes of `hosts` are given is handed to `record`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    selector = selectors.DefaultSelector()
    for host in hosts:
        os.mkfifo(pipe_of(host))
        # Open to write as well, so that it does not end when the last other writer closes it.
        selector.register(os.open(pipe_of(host), os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, host)
    wake, stop = os.pipe()
    selector.register(wake, selectors.EVENT_READ, "")
    reader = Thread(target=_read, args=(selector, record, now_s), name="marks")
    reader.start()
    try:
        yield
    finally:
        os.write(stop, b"\n")
        reader.join()
        for key in list(selector.get_map().values()):
            os.close(key.fd)
            if key.data:
                pipe_of(key.data).unlink()
        os.close(stop)
        selector.close()


def _read(selector: selectors.BaseSelector, record: Callable[[Mark], None], now_s: Callable[[], float]) -> None:
    """Hand on whole lines until the pipe without a host is written to; what stands in the others then is still read."""
    begun: dict[str, bytes] = {}
    left, ending = MOST, False
    while not ending:
        ready = selector.select()
        ending = any(not key.data for key, _ in ready)
        for key in [key for key, _ in ready if key.data]:
            with suppress(BlockingIOError):
                *lines, rest = (begun.get(key.data, b"") + os.read(key.fd, READ_BYTES)).split(b"\n")
                begun[key.data] = rest[-READ_BYTES:]
                for line in lines[:left]:
                    record(Mark(time_s=now_s(), node=key.data, text=_clean(line.decode(errors="replace"))))
                left -= min(left, len(lines))


def _clean(text: str) -> str:
    """One line that can be printed."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:LONGEST]
