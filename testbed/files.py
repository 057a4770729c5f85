"""Files that are either whole or not there, what they are checked by, folders nobody else has, paths as typed."""

from __future__ import annotations

import os
import shlex
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import InputError, of_file

RESERVED_BYTES = 16 << 10  # for the last event and the last `run.json`
NAME_BYTES = 255  # the longest name of Linux's file systems

BLOCK_BYTES = 1 << 20


def shown(path: Path) -> Path:
    """A path as it is read in the working directory."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def typed_path(path: Path) -> str:
    """The same as a shell takes it: in quotes where its name has a space."""
    return shlex.quote(str(shown(path)))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; put it in the place of `path` when the block ends without an error.

    The folder is made when it is missing. A reader sees the old file or the new one, never a half of it.
    InputError where `path` is a folder's.
    """
    if not path.name or path.is_dir():
        raise InputError(f"{path}: is a directory; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename is None or str(error.filename) == str(temporary):  # a write that fails does not say where
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write `content` (text as UTF-8) to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def reserving(path: Path) -> Iterator[None]:
    """Hold some room on the disk at `path`, which is free again when the block ends, however full the disk is then."""
    try:
        path.write_bytes(bytes(RESERVED_BYTES))
        yield
    finally:
        path.unlink(missing_ok=True)


def crc32(content: bytes) -> str:
    """CRC-32 in hex, eight digits: what every file of a record is checked by."""
    return f"{zlib.crc32(content):08x}"


def crc32_of(path: Path) -> str:
    """CRC-32 (`crc32`) of a file, a block at a time."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def make_folder(folder: Path) -> None:
    """Make a folder for results and those above it, as far as they are missing; InputError where it holds none."""
    _make(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: it cannot be written to; name another folder with --out")


def new_folder(parent: Path, run_id: str) -> Path:
    """A folder nobody else has, also when two runs start in the same second."""
    _make(parent)
    for suffix in ("", *(f"-{k}" for k in range(2, 100))):
        folder = parent / (run_id + suffix)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_made(error) from None
        return folder.resolve()
    raise InputError(f"{parent}: a hundred runs started in one second; wait a moment")


def _make(folder: Path) -> None:
    """Make a folder and those above it, as far as they are missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        dangling = [each for each in (folder, *folder.parents) if each.is_symlink() and not each.exists()]
        if dangling:
            raise InputError(f"{dangling[0]}: a link to nowhere; name another folder with --out") from None
        raise _not_made(error) from None


def _not_made(error: OSError) -> InputError:
    return InputError(f"{of_file(error)}; it cannot be made: name another folder with --out")


def plain_name(name: str, where: str) -> str:
    """`name` if it can be that of one file or folder, and leads to no other; `where` begins the error's line."""
    if name in ("", ".", "..") or any(c == "/" or not c.isprintable() for c in name):
        raise InputError(f"{where} {name!r} is no plain name; a folder is to be called so, without / and not ..")
    if len(name.encode()) > NAME_BYTES:
        raise InputError(f"{where} '{name[:40]}...' is a name of {len(name.encode())} bytes; {NAME_BYTES} are possible")
    return name
