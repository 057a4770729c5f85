"""Where records lie: is there a run in a folder, and if not, which one was meant? Asked before anything is read."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from testbed.errors import InputError
from testbed.files import shown
from testbed.record import program
from testbed.record.info import FILE_NAME
from testbed.record.series import FILE_NAME as SERIES

NEAR = 3  # neighbours that an error names
LOOKED_AT = 1_000  # names in a folder
SEED = re.compile(r"seed-\d+")  # what a seed's folder is called, in a system's, in a run's
FILES = (FILE_NAME, SERIES, program.FILE_NAME)  # that a run, a series, a program's run has


def check(*folders: Path) -> None:
    """Raise InputError unless each is the folder of a run, a series or a program's run; it names at most three near."""
    for folder in folders:
        if not _is_one(folder) or _run_around(folder):
            raise InputError(no_run(folder))


def no_run(path: Path) -> str:
    """What to say where `path` holds no run."""
    if not path.is_dir():
        return f"no run in {path}{_near(path)}"
    if run := _run_around(path):
        part = "a seed" if SEED.fullmatch(path.resolve().name) else "a system"
        return f"no run in {path}: it is the folder of {part} in the run {run}; give that"
    below = sorted(each.parent for name in FILES for each in path.glob(f"*/{name}"))
    if below:
        return f"no run in {path}: not a run, but it holds {len(below)}; the last is {below[-1]}"
    return f"no run in {path}: it needs a folder results/<target>/<run-id>, which a run writes"


def _run_around(path: Path) -> Path | None:
    """The run in whose folder `path` is that of a system or of a seed; None where it is no such folder."""
    whole = path.resolve()
    if any(whole.glob("*/seed-*")):
        return None
    if SEED.fullmatch(whole.name):
        return shown(whole.parents[1])
    if any(SEED.fullmatch(each.name) for each in whole.glob("seed-*")):
        return shown(whole.parent)
    return None


def _is_one(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES) or any(path.glob("*/seed-*"))


def _near(path: Path) -> str:
    """The folders that lie where it was looked for: those with a name like it, else the last runs."""
    parent = next(each for each in (*path.parents, Path("/")) if each.is_dir())
    missing = path.relative_to(parent).parts[0]
    folders = sorted(each for each in list(parent.iterdir())[:LOOKED_AT] if each.is_dir() and each.name[:1] != ".")
    like = difflib.get_close_matches(missing, [each.name for each in folders], n=NEAR)
    found = [parent / name for name in like] or [each for each in folders if _is_one(each)][-NEAR:]
    return f"; near it: {', '.join(map(str, found))}" if found else ""
