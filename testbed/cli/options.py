"""How sub-commands are declared, and the kinds of values that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

RUN = "results/cifarnet/20260101-120000-virtual"  # in examples


class Commands:
    """The sub-commands of one level: of `testbed`, or of a command that has sub-commands itself."""

    def __init__(self, commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
        self._commands = commands

    def add(
        self, name: str, function: Callable[[argparse.Namespace], int], text: str, epilog: str | None = None
    ) -> argparse.ArgumentParser:
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


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers, e.g. 0,1,2") from None
