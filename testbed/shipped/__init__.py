"""What comes with the testbed as files: experiments, WAN profiles, bandwidth traces, prices.

In a clone they lie where people look for them, in `experiments/` and `topologies/`; this package holds links to those
folders, so that an installed wheel has the files themselves. A file of that name in the same folder below the working
directory comes first: whoever installed the testbed changes a copy there.
"""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def find(folder: str, name: str) -> Path | None:
    """The file `folder/name`, e.g. "experiments" and "cifarnet.toml": the user's own, else the one that was shipped."""
    return next((place / name for place in places(folder) if is_file(place / name)), None)


def is_file(path: Path) -> bool:
    """Whether it is one; of a name that no file can have (too long, with a NUL in it) not, where `Path` raises."""
    return os.path.isfile(path)  # noqa: PTH113


def names(folder: str, suffix: str) -> list[str]:
    """The names, without `suffix`, of the files that `find` would find."""
    return sorted({path.name.removesuffix(suffix) for place in places(folder) for path in place.glob(f"*{suffix}")})


def places(folder: str) -> tuple[Path, ...]:
    """Where `folder` is looked for, in order."""
    return (Path(folder), (HERE / folder).resolve())
