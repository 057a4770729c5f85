"""What a user should know of how a run uses its device: one line each, said once."""

from __future__ import annotations

import sys

_said: set[str] = set()


def note(line: str) -> None:
    """Say a line to whoever runs this, unless it has been said; of several, as errors have them, the first."""
    line = line.strip().partition("\n")[0]
    if line not in _said:
        _said.add(line)
        print(f"note: {line}", file=sys.stderr)


def said() -> tuple[str, ...]:
    """All lines of this process so far."""
    return tuple(sorted(_said))


def forget() -> None:
    """Begin anew."""
    _said.clear()
