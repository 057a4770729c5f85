"""Checkpoints of one system and seed: the states of all roles at a step boundary, whole or not at all.

`<system>/seed-<n>/checkpoint-<step>/` holds one file a role and `clock.json`. It is written under a temporary
name and renamed, then the one before it is deleted: there is always one to go on from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

PREFIX = "checkpoint-"
CLOCK = "clock.json"


class Clock(msgspec.Struct, frozen=True):
    """Where the run stood: steps completed, and seconds on its clock (exactly: JSON keeps every bit)."""

    step: int
    clock_s: float


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path
    clock: Clock


def latest(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint in a system's and seed's folder."""
    found = []
    for path in folder.glob(f"{PREFIX}*"):
        try:
            found.append(Checkpoint(path, msgspec.json.decode((path / CLOCK).read_bytes(), type=Clock)))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue  # a temporary one, left by a killed run
    return max(found, key=lambda checkpoint: checkpoint.clock.step, default=None)


def write(folder: Path, clock: Clock, save: Callable[[Path], None], before_rename: Callable[[Path], None]) -> None:
    """Write a checkpoint: `save` fills it, `before_rename` is told its temporary folder when it is complete."""
    temporary = folder / f"{PREFIX}{clock.step}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save(temporary)
    before_rename(temporary)
    (temporary / CLOCK).write_bytes(msgspec.json.encode(clock))
    final = temporary.with_suffix("")
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for other in folder.glob(f"{PREFIX}*"):
        if other != final:
            shutil.rmtree(other)


def remove(folder: Path) -> None:
    """Delete all checkpoints: the system and seed is finished."""
    for path in folder.glob(f"{PREFIX}*"):
        shutil.rmtree(path)


def sweep(results: Path) -> list[Path]:
    """Delete half-written checkpoints and empty folders under `results`; returns what was deleted."""
    swept = []
    for path in sorted(results.glob(f"*/*/*/seed-*/{PREFIX}*.tmp")):
        shutil.rmtree(path)
        swept.append(path)
    for path in sorted(results.glob("*/*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            swept.append(path)
    return swept
