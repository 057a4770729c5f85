"""Computations of one kind that are done in one go where several ask for them at one instant.

A device takes about as long to start one operation as to do it, and eight workers who code their vectors at one instant
ask for the same operations eight times. A method that is marked says which other one does it for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MOST = 16  # calls done in one go; each takes memory
_MARK = "_in_one_go"


@dataclass(frozen=True)
class _Mark:
    for_all: str
    sized: Callable[[Any], Any]


@dataclass
class Asked:
    """A call that waits for others.

    Attributes
    ----------
    arguments : its own
    sized : an object of the sizes that its result will have; None where nobody asks for sizes
    result : once it is done
    """

    arguments: tuple[Any, ...]
    sized: Any
    result: Any = None


def in_one_go(for_all: str, sized: Callable[[Any], Any] = lambda owner: None) -> Callable[[F], F]:
    """Mark a method that may wait for other calls of itself.

    Parameters
    ----------
    for_all : the method that does several calls: their arguments, a tuple each -> their results; None: cannot now
    sized : of the method's owner what has the sizes that each result will have
    """

    def mark(method: F) -> F:
        setattr(method, _MARK, _Mark(for_all, sized))
        return method

    return mark


class Gathering:
    """Calls that have been asked for and not done yet."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, str], tuple[Callable[[Sequence[tuple[Any, ...]]], list[Any]], list[Asked]]] = {}

    def ask(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Asked | None:
        """Put a call off until `run`; None: it is none of those that can be."""
        mark: _Mark | None = getattr(method, _MARK, None)
        if mark is None:
            return None
        owner = method.__self__  # type: ignore[attr-defined]
        asked = Asked(arguments, mark.sized(owner))
        _, calls = self._calls.setdefault((id(owner), mark.for_all), (getattr(owner, mark.for_all), []))
        calls.append(asked)
        return asked

    def run(self) -> None:
        """Do all that has been asked for."""
        if not self._calls:
            return
        gathered, self._calls = self._calls, {}
        for for_all, calls in gathered.values():
            for first in range(0, len(calls), MOST):
                some = calls[first : first + MOST]
                for asked, result in zip(some, for_all([each.arguments for each in some]), strict=True):
                    asked.result = result

    def forget(self) -> None:
        """Whoever asked is gone."""
        self._calls = {}
