"""Plain data that came from outside: tables, lists, texts and numbers which the rest of the code can rely on.

TOML and JSON have numbers of any length, texts with any character, and tables in tables without end. What no field of
a struct could hold, no file be called and no function descend into is refused here, whatever key it stands at.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from typing import Any

from testbed.errors import InputError

DEPTH = 32  # of tables in tables
SHOWN_BITS = 256  # of a number that is shown


def toml(text: str, source: str, any_text: bool = False) -> dict[str, Any]:
    """What a TOML file holds.

    Parameters
    ----------
    source : what errors call it
    any_text : whether a text may have a NUL in it, as none of them is a name or a word of a command

    Raises
    ------
    InputError
        It is no TOML, or `check` refuses something in it.
    """
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{source}: nested too deeply") from None
    except ValueError as error:  # tomllib's, and Python's own for numbers of thousands of digits
        raise InputError(f"{source}: not valid TOML: {error}") from None
    check(found, source, any_text)
    return found


def check(data: Any, source: str, any_text: bool = False) -> None:
    """Raise InputError on a number beyond 64 bits or without end, a text that can be no name, and on deep nesting."""
    left = [("", data, 0)]
    while left:
        path, value, depth = left.pop()
        if depth > DEPTH:
            raise InputError(f"{source}: nested too deeply: more than {DEPTH} tables in tables")
        if why := _why_not(value, any_text):
            raise InputError(f"{source}: {path} is {why}")
        for place, inner in _inside(value):
            if why := _why_not(place, any_text):
                raise InputError(f"{source}: a key of {path or 'it'} is {why}")
            at = f"{path}[{place}]" if isinstance(place, int) else f"{path}.{place}".lstrip(".")
            left.append((at, inner, depth + 1))


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _why_not(value: Any, any_text: bool) -> str:
    """What is wrong with a single value; "" for nothing."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        shown = str(value) if value.bit_length() <= SHOWN_BITS else f"a number of {value.bit_length()} bits"
        return f"{shown}: it must fit into 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}: it must be a finite number"
    if isinstance(value, str) and "\0" in value and not any_text:
        return f"{value[:40]!r}: no name can have a NUL in it"
    return ""
