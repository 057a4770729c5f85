"""Files that are either whole or not there, folders that nobody else has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; put it in the place of `path` when the block ends without an error.

    The folder is made when it is missing. A reader sees the old file or the new one, never a half of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write `content` (text as UTF-8) to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def new_folder(parent: Path, run_id: str) -> Path:
    """A folder nobody else has, also when two runs start in the same second."""
    for suffix in ("", *(f"-{k}" for k in range(2, 100))):
        folder = parent / (run_id + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{folder}: cannot be made: {error.strerror}; name another folder with --out") from None
        return folder.resolve()
    raise InputError(f"{parent}: a hundred runs started in one second; wait a moment")
