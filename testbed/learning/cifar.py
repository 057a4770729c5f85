"""CIFAR-10 on disk: the standard binary and python layouts, and the official download.

Everywhere a batch is an array of records, uint8 [n, 3073]: a label, then 3x32x32 pixels (Krizhevsky 2009,
"Learning Multiple Layers of Features from Tiny Images"). What is read is checked before it is used.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError

Records = NDArray[np.uint8]

SHAPE = (3, 32, 32)
CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
RECORDS = 10_000  # in each batch
BINARY, BINARY_FILES = "cifar-10-batches-bin", (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PYTHON, PYTHON_FILES = "cifar-10-batches-py", (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
# Pixels are up to twice their size when Python 3 writes a file that Python 2 can read; labels and names come on top.
PYTHON_MAX_BYTES_PER_RECORD = 2 * RECORD_BYTES + 256

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
ARCHIVE_MAX_BYTES = 200_000_000
CONNECT_TIMEOUT_S = 10.0
DOWNLOAD_TIMEOUT_S = 900.0
CHUNK_BYTES = 1 << 20


def read_binary(folder: Path, records: int = RECORDS) -> list[Records]:
    """Map the six files of the binary layout, the test batch last; `records` is what each must hold.

    Raises
    ------
    InputError
        A file is missing, of the wrong size, or holds a label above 9.
    """
    return [_map(folder / name, records) for name in BINARY_FILES]


def _map(path: Path, records: int) -> Records:
    size_bytes = _size(path)
    if size_bytes != records * RECORD_BYTES:
        raise InputError(
            f"{path}: {size_bytes} bytes, expected {records * RECORD_BYTES}; the file is damaged: delete its folder "
            "to have it fetched again, or put a whole copy there"
        )
    try:
        batch = np.asarray(np.memmap(path, np.uint8, "r", shape=(records, RECORD_BYTES)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return _checked(batch, path)


def read_python(folder: Path, records: int = RECORDS) -> list[Records]:
    """Read the six files of the python layout into memory, the test batch last.

    Raises
    ------
    InputError
        A file is missing, too large, no such pickle, or asks for anything but arrays and plain containers.
    """
    return [_unpickle(folder / name, records) for name in PYTHON_FILES]


def _unpickle(path: Path, records: int) -> Records:
    limit_bytes = records * PYTHON_MAX_BYTES_PER_RECORD
    if _size(path) > limit_bytes:
        raise InputError(f"{path}: larger than a CIFAR-10 batch can be ({limit_bytes} bytes); replace it")
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="bytes").load()
        data, labels = content[b"data"], np.asarray(content[b"labels"], np.uint8)
        if data.dtype != np.uint8 or data.shape != (records, RECORD_BYTES - 1) or labels.shape != (records,):
            raise ValueError(f"data {data.shape} {data.dtype} and {len(labels)} labels, expected {records} images")
    except Exception as error:  # a damaged pickle can raise anything at all
        raise InputError(f"{path}: not a CIFAR-10 batch ({error}); replace it") from None
    return _checked(np.column_stack([labels, data]), path)


def _empty_array(kind: type, shape: tuple[int, ...], code: object) -> NDArray[Any]:
    """Stand in for numpy's `_reconstruct`, which would allocate whatever shape the file names."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("array of an unexpected kind")
    return np.empty(0, np.uint8)


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for `_codecs.encode`, by which Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"unexpected encoding {encoding!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Reads numpy arrays, numbers, strings and plain containers; refuses every other name in the file."""

    ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no data set needs") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; a CIFAR-10 folder holds six batches") from None


def _checked(batch: Records, path: Path) -> Records:
    if (highest := int(batch[:, 0].max())) >= CLASSES:
        raise InputError(f"{path}: holds label {highest}, CIFAR-10 has 0 to {CLASSES - 1}; the file is damaged")
    return batch


def store(batches: list[Records], folder: Path) -> bool:
    """Write batches as a binary layout, all or nothing; return whether `folder` is there afterwards."""
    try:
        with _all_or_nothing(folder) as staged:
            for name, batch in zip(BINARY_FILES, batches, strict=True):
                batch.tofile(staged / name)
    except OSError:  # read-only or full
        return False
    return True


def download(folder: Path) -> None:
    """Fetch the official archive and lay its batches out in `folder`, all or nothing.

    Raises
    ------
    OSError
        No network, no room, too slow, or what came is not the official archive.
    """
    with _all_or_nothing(folder) as staged:
        archive = staged / "archive.tar.gz"
        with urllib.request.urlopen(URL, timeout=CONNECT_TIMEOUT_S) as response, archive.open("wb") as file:
            _fetch(response, file)
        _extract(archive, staged)
        archive.unlink()


def _fetch(response: IO[bytes], file: IO[bytes]) -> None:
    digest, size_bytes, deadline = hashlib.md5(usedforsecurity=False), 0, time.monotonic() + DOWNLOAD_TIMEOUT_S
    while chunk := response.read(CHUNK_BYTES):
        size_bytes += len(chunk)
        if size_bytes > ARCHIVE_MAX_BYTES:
            raise OSError("the archive is larger than the official one")
        if time.monotonic() > deadline:
            raise OSError(f"not complete after {DOWNLOAD_TIMEOUT_S:.0f} s")
        digest.update(chunk)
        file.write(chunk)
    if digest.hexdigest() != ARCHIVE_MD5:
        raise OSError(f"the archive's md5 is {digest.hexdigest()}, the official one's is {ARCHIVE_MD5}")


def _extract(archive: Path, folder: Path) -> None:
    """Take the six batches out under names of our own, so that no path in the archive is ever followed."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name in BINARY_FILES:
                member = tar.getmember(f"{BINARY}/{name}")
                source = tar.extractfile(member)
                if source is None or member.size != RECORDS * RECORD_BYTES:
                    raise OSError(f"{name} in the archive is not a CIFAR-10 batch")
                with (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise OSError(f"the archive cannot be read ({error})") from None


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[Path]:
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
