"""How the testbed starts Python: without the current folder on `sys.path`, where `-m` and `-c` put it first.

A file there that is called like a module of the standard library (`profile.py`) would else be executed in its place.
Plug-ins are found by `testbed.plugins`, which looks in the current folder last.
"""

from __future__ import annotations

import sys

PYTHON = (sys.executable, "-P")


def testbed(*arguments: str) -> list[str]:
    """The command `testbed` with `arguments`, as this process would run it."""
    return [*PYTHON, "-m", "testbed", *arguments]
