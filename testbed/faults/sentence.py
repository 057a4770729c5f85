"""A fault in a sentence: "partition us-west-1 us-east-2 at 20s for 30s".

The kind comes first; then, in any order, the links, regions or roles it concerns, its times (`at 20s`, `for 500ms`,
`every 2min`, or `mtbf 5min mttr 20s`), and its other keys (`factor=0.1`).
"""

from __future__ import annotations

import re
from typing import Any

from testbed.errors import InputError, nearest
from testbed.faults.base import FAULTS

TIMES = {"at": "at_s", "for": "for_s", "every": "every_s", "mtbf": "mtbf_s", "mttr": "mttr_s"}
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
APART = re.compile(rf"\b({'|'.join(TIMES)})\s+([\d.]+)\s+({'|'.join(filter(None, UNITS))})(?=\s|$)")  # "at 20 s"


def read(text: str) -> dict[str, Any]:
    """The table of `[[faults]]` that a sentence means.

    Raises
    ------
    InputError
        It begins with no kind of fault, a time is none or two words, or a word is neither.
    """
    if apart := APART.search(text):
        raise InputError(f"'{apart[0].strip()}': a time is one word: {apart[1]} {apart[2]}{apart[3]}")
    words = iter(text.split())
    kind = FAULTS.find(next(words, ""))
    table: dict[str, Any] = {"kind": kind.name}
    fields = kind.__struct_fields__
    for word in words:
        key, sign, value = word.partition("=")
        if word in TIMES:
            _put(table, TIMES[word], _seconds(next(words, ""), word))
        elif sign and key in fields:
            _put(table, key, _value(value))
        elif not kind.target or (sign and not isinstance(_value(value), str)):  # "faktor=3" is no link "a=b"
            raise InputError(f"'{word}' is no key of {kind.name}{nearest(key, fields)}")
        else:
            table.setdefault(kind.target, []).append(word)
    return table


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    if key in table:
        raise InputError(f"{key} stands there twice")
    table[key] = value


def _seconds(text: str, word: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|min|h)?", text)
    if found is None:
        raise InputError(f"'{word} {text}': a time is e.g. 20s, 500ms, 2min or 1h")
    return float(found[1]) * UNITS[found[2] or ""]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
