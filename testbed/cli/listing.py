"""What there is of a kind, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import shorten

LETTERS = 120  # of a line, beside the name


def show(found: Mapping[str, str | None]) -> None:
    """Print names, and beside each the beginning of what is said of it."""
    width = max(map(len, found), default=0)
    for name, said in found.items():
        first = (said or "").strip().split("\n\n")[0]
        print(f"{name:{width}}  {shorten(first, LETTERS, placeholder=' ...')}".rstrip())
