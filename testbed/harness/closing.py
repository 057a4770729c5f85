"""Closing the record of a run that died: what played it is gone, so it cannot say itself how it ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import InputError
from testbed.harness import checkpoint
from testbed.harness.play import RESERVED
from testbed.record import lines
from testbed.record.events import RunEnded
from testbed.record.info import FILE_NAME, ResultInfo, read_info, write_info
from testbed.record.recorder import Recorder

PATTERN = f"*/seed-*/{FILE_NAME}"  # in the folder of a run


def running(folder: Path) -> dict[Path, int]:
    """The systems and seeds under `folder`, a run or a series, whose records say that they are played.

    Returns
    -------
    Their folders, and when their status was written (ns): what the same folder says later is another beginning.
    """
    return {path.parent: path.stat().st_mtime_ns for path in _facts(folder) if _status(path.parent) == "running"}


def close(place: Path, why: str) -> None:
    """End the record of a system and seed that nobody plays any more as failed; `why` is its error's line."""
    events = place / lines.FILE_NAME
    (place / RESERVED).unlink(missing_ok=True)
    info = read_info(place, ResultInfo)
    info.status, info.error = "failed", why
    with Recorder.join(place) as recorder:
        if lines.is_torn(events):  # in the middle of the line that was being written
            os.truncate(events, sum(map(len, lines.whole_lines(events))))
        last, kept = lines.last_event(events), checkpoint.latest(place)
        time_s, step = last.time_s if last else 0.0, kept.clock.step if kept else 0
        recorder.record(RunEnded(time_s=time_s, step=step, how="failed", error=why))
        write_info(place, info)
        info.checksums = recorder.finish()
    write_info(place, info)


def _facts(folder: Path) -> Iterator[Path]:
    yield from folder.glob(PATTERN)
    yield from folder.glob(f"*/{PATTERN}")


def _status(place: Path) -> str:
    try:
        return read_info(place, ResultInfo).status
    except InputError:
        return ""
