"""Writes the records of one system and seed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.errors import InputError, RunError
from testbed.record import lines
from testbed.record.events import Checkpointed, Event, RunEnded

DISCARDED = "events.discarded.jsonl"


class Recorder:
    """Appends events to `folder/events.jsonl`; the frames are made of them at the end.

    Every event is handed to the kernel as it comes (2 us each), so that a killed run loses at most the line it was
    writing; at a checkpoint and at the end the file is also forced to the disk. Lines of several threads do not mix.

    Parameters
    ----------
    folder : `<run>/<system>/seed-<n>`; made when it is missing

    Raises
    ------
    InputError
        The folder already has events: resume them or choose another folder.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / lines.FILE_NAME
        if path.exists() and path.stat().st_size:
            raise InputError(f"{path} already holds a run; resume it (--resume) or write to another folder (--out)")
        folder.mkdir(parents=True, exist_ok=True)
        self._open(folder)

    @classmethod
    def resume(cls, folder: Path, step: int | None = None) -> Recorder:
        """Go on behind the last `Checkpointed` line, so that the events equal those of an uninterrupted run.

        What lies behind it moves to `events.discarded.jsonl`; a torn last line is dropped. With no checkpoint
        all events move there and the run starts afresh.

        Parameters
        ----------
        step : of the checkpoint whose state was loaded. When `Checkpointed` is recorded before the state is
            renamed into place, a run killed between the two resumes without a gap.

        Raises
        ------
        InputError
            `step` (other than 0) was never recorded as a checkpoint.
        """
        path = folder / lines.FILE_NAME
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        end = lines.checkpoint_end(path, step)
        if step and not end:
            raise InputError(
                f"{path}: no checkpoint of step {step} is recorded; remove its checkpoint files to restart"
            )
        _discard_behind(path, end)
        recorder = cls.__new__(cls)
        recorder._open(folder)
        return recorder

    @classmethod
    def join(cls, folder: Path) -> Recorder:
        """Append to records that another process of the same run has opened: each line is one atomic write."""
        recorder = cls.__new__(cls)
        recorder._open(folder)
        return recorder

    def _open(self, folder: Path) -> None:
        self.folder = folder
        self._file = (folder / lines.FILE_NAME).open("ab", buffering=0)

    def record(self, event: Event) -> None:
        """Append one event.

        Raises
        ------
        RunError
            The line could not be written, e.g. because the disk is full; at a checkpoint also where `require` raises.
        """
        line = lines.encode(event)
        if isinstance(event, RunEnded) and lines.is_torn(self.folder / lines.FILE_NAME):
            line = b"\n" + line  # the disk was full in the middle of one
        self.append(line)
        if isinstance(event, Checkpointed):
            self.require()
            with self._writing():
                os.fsync(self._file.fileno())

    def require(self) -> None:
        """Raise RunError where the file was deleted: what is written to it since then is nowhere."""
        if not os.fstat(self._file.fileno()).st_nlink:
            raise RunError(f"{self._file.name}: taken away while the run went on; what it held is lost, run it again")

    def append(self, lines: bytes) -> None:
        """Append whole lines, which another machine has made of events. Raises as `record` does."""
        with self._writing():
            if self._file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self._file.name}: cannot write the record: {error.strerror or error}") from None

    def close(self) -> None:
        """Force the events to the disk and close the file; a second call does nothing."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def finish(self) -> dict[str, str]:
        """Close, then write `steps.parquet`, `links.parquet` and `evaluations.parquet` from the events.

        Returns
        -------
        The CRC-32 of each (`testbed.files.crc32_of`) by its name.
        """
        self.close()
        try:
            from testbed.record import frames  # pandas and pyarrow: not for the many processes that only record
        except ImportError:  # on a machine that only trains; tables are then made of the events when they are read
            return {}
        return frames.write(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _discard_behind(path: Path, end: int) -> None:
    """Cut `path` at `end`; append the whole lines behind it to the file of discarded events first."""
    with path.open("rb") as events, (path.parent / DISCARDED).open("ab") as discarded:
        events.seek(end)
        for line in events:
            if line.endswith(b"\n"):
                discarded.write(line)
        discarded.flush()
        os.fsync(discarded.fileno())
        empty = discarded.tell() == 0
    if empty:
        (path.parent / DISCARDED).unlink()
    with path.open("r+b") as events:
        events.truncate(end)
        os.fsync(events.fileno())
