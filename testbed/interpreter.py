"""How the testbed starts Python: without the current folder on `sys.path`, where `-m` and `-c` put it first.

A file there that is called like a module of the standard library (`profile.py`) would else be executed in its place.
Plug-ins are found by `testbed.plugins`, which looks in the current folder last.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PYTHON = (sys.executable, "-P")


def testbed(*arguments: str) -> list[str]:
    """The command `testbed` with `arguments`, as this process would run it."""
    return [*PYTHON, "-m", "testbed", *arguments]


def typed() -> str:
    """What a user types for the command: its name where the shell finds it, else the file beside this Python."""
    if shutil.which("testbed"):
        return "testbed"
    beside = Path(PYTHON[0]).with_name("testbed")
    if not beside.is_file():
        return "python -m testbed"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
