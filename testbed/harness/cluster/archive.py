"""A folder of records as bytes, and back: a compressed tar of plain files, which nothing in it can lead elsewhere."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath

from testbed.errors import RunError
from testbed.harness.lock import FILE_NAME as LOCK
from testbed.harness.play import RESERVED

LEFT_OUT = (LOCK, RESERVED)  # of use only where they are
LEVEL = 1  # of gzip: lines of events take a fifth of their room, at the speed of a disk


def pack(folder: Path) -> bytes:
    """All files below `folder`; none where it is not there."""
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=LEVEL) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name not in LEFT_OUT:
                tar.add(path, str(path.relative_to(folder)), recursive=False)
    return content.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Make `folder` hold what `pack` packed and nothing else: whole, or as it was before.

    Raises
    ------
    RunError
        It is no such archive, is cut off, or would not fit on the disk.
    """
    half = folder.with_name(f".{folder.name}.unpacked")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=BytesIO(content), mode="r:gz") as tar:
            _extract(tar, half, shutil.disk_usage(half).free)
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise RunError(f"{folder}: the records that came are damaged: {error}") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _extract(tar: tarfile.TarFile, folder: Path, free_bytes: int) -> None:
    for member in _files(tar):
        free_bytes -= member.size
        if free_bytes < 0:
            raise RunError(f"{folder.parent}: no room for the records that came; make some and go on with --resume")
        path = folder / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(member)
        assert source is not None, "a file"
        with source, path.open("xb") as file:
            shutil.copyfileobj(source, file)
        if path.stat().st_size != member.size:
            raise tarfile.ReadError(f"{member.name} is cut off")


def _files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members, each checked to be a file below the folder."""
    for member in tar:
        parts = PurePosixPath(member.name).parts
        if not member.isreg() or member.name.startswith("/") or ".." in parts or not parts:
            raise tarfile.ReadError(f"{member.name!r} is no plain file below the folder")
        yield member
