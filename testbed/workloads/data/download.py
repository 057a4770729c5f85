"""Files from the network and folders on the disk, whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

CONNECT_TIMEOUT_S = 10.0
DOWNLOAD_TIMEOUT_S = 900.0
CHUNK_BYTES = 1 << 20


def fetch(url: str, path: Path, md5: str, max_bytes: int, sha256: str = "") -> None:
    """Download `url` to `path`.

    Parameters
    ----------
    md5 : in hex, as the official site has it; another file of the same can be made
    sha256 : of the file that has that md5, in hex; "" where nobody here has had it

    Raises
    ------
    OSError
        No network, no room, too slow, larger than `max_bytes`, or not the file of these checksums.
    """
    digests = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    size_bytes, deadline = 0, time.monotonic() + DOWNLOAD_TIMEOUT_S
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as response, path.open("wb") as file:
            while chunk := response.read1(CHUNK_BYTES):  # what has come, so that the deadline is looked at in time
                size_bytes += len(chunk)
                if size_bytes > max_bytes:
                    raise OSError(f"{url} is larger than the official file")
                if time.monotonic() > deadline:
                    raise OSError(f"{url} is not complete after {DOWNLOAD_TIMEOUT_S:.0f} s")
                for digest in digests.values():
                    digest.update(chunk)
                file.write(chunk)
    except HTTPException as error:  # which is no OSError: an answer that is none, or ends too early
        raise OSError(f"{url}: {type(error).__name__}: {error}") from None
    for name, official in {"md5": md5, "sha256": sha256}.items():
        if official and (found := digests[name].hexdigest()) != official:
            raise OSError(f"the {name} of {url} is {found}, the official file's is {official}")


@contextmanager
def all_or_nothing(folder: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `folder` at the end, or vanishes if anything goes wrong before."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield staged
        staged.chmod(0o755)
        try:
            staged.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was first, with the same content
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
