"""Several links used at once, each from a thread of its own.

These threads keep nobody waiting: who is told to stop, with Ctrl-C, stops at once, whatever is still under way, as the
threads of an executor would not let them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
Found = TypeVar("Found")


def started(work: Callable[[T], Found], items: Iterable[T]) -> list[Future[Found]]:
    """Begin to work on all items, and return what will come of each."""
    futures = []
    for item in items:
        futures.append(future := Future[Found]())
        Thread(target=_fulfil, args=(future, work, item), daemon=True).start()
    return futures


def at_once(work: Callable[[T], Found], items: Iterable[T]) -> list[Found]:
    """What came of each item, in their order; what was raised is raised here."""
    return [future.result() for future in started(work, items)]


def _fulfil(future: Future[Found], work: Callable[[T], Found], item: T) -> None:
    try:
        future.set_result(work(item))
    except BaseException as error:  # told to who waits for it
        future.set_exception(error)
