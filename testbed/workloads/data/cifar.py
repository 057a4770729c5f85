"""CIFAR-10 on disk: the standard binary and python layouts, and the official download.

Everywhere a batch is an array of records, uint8 [n, 3073]: a label, then 3x32x32 pixels (Krizhevsky 2009,
"Learning Multiple Layers of Features from Tiny Images"). What is read is checked before it is used.
"""

from __future__ import annotations

import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError
from testbed.workloads.data import augment
from testbed.workloads.data.base import DataFolder, Notice, dataset
from testbed.workloads.data.download import all_or_nothing, fetch
from testbed.workloads.data.images import Content
from testbed.workloads.data.labelled import ImageSource, LabelledImages
from testbed.workloads.data.records import Format, Records, store
from testbed.workloads.data.standin import StandIn

FORMAT = Format("CIFAR-10", (3, 32, 32), classes=10)
STAND_IN = StandIn("batches-bin", FORMAT, batches=6, images=10_000)
RECORDS = 10_000  # in each batch
BINARY, BINARY_FILES = "cifar-10-batches-bin", (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PYTHON, PYTHON_FILES = "cifar-10-batches-py", (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
# Pixels are up to twice their size when Python 3 writes a file that Python 2 can read; labels and names come on top.
PYTHON_MAX_BYTES_PER_RECORD = 2 * FORMAT.record_bytes + 256

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # no SHA-256: it is to be made of an archive that has this
ARCHIVE_MAX_BYTES = 200_000_000


def read(root: Path, notice: Notice) -> Content | None:
    """Read CIFAR-10 from a data folder, in either layout; None where it is not there.

    The python layout is converted to the binary one, which workers can share.
    """
    binary, python = root / BINARY, root / PYTHON
    if not binary.is_dir() and python.is_dir():
        batches = read_python(python)
        if not store(batches, BINARY_FILES, binary):  # a read-only folder: every process then holds its own copy
            return content(batches)
        notice(f"CIFAR-10: converted {python} to {binary}, which workers can share")
    return content(read_binary(binary)) if binary.is_dir() else None


def content(batches: list[Records]) -> Content:
    """The data set of six batches, the last one being the test set."""
    return Content(FORMAT.split(batches[:-1]), FORMAT.split(batches[-1:]), FORMAT.classes)


def read_binary(folder: Path, records: int = RECORDS) -> list[Records]:
    """Map the six files of the binary layout, the test batch last; `records` is what each must hold.

    Raises
    ------
    InputError
        A file is missing, of the wrong size, or holds a label above 9.
    """
    return [FORMAT.map(folder / name, records) for name in BINARY_FILES]


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
    try:
        if path.stat().st_size > limit_bytes:
            raise InputError(f"{path}: larger than a CIFAR-10 batch can be ({limit_bytes} bytes); replace it")
        with path.open("rb") as file:
            found = _ArrayUnpickler(file, encoding="bytes").load()
        data, labels = found[b"data"], np.asarray(found[b"labels"], np.uint8)
        if data.dtype != np.uint8 or data.shape != (records, FORMAT.record_bytes - 1) or labels.shape != (records,):
            raise ValueError(f"data {data.shape} {data.dtype} and {len(labels)} labels, expected {records} images")
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise anything at all
        raise InputError(f"{path}: not a CIFAR-10 batch ({error}); replace it") from None
    return FORMAT.checked(np.column_stack([labels, data]), path)


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


def download(root: Path) -> None:
    """Fetch the official archive and lay its batches out in the data folder, all or nothing.

    Raises
    ------
    OSError
        No network, no room, too slow, or what came is not the official archive.
    """
    with all_or_nothing(root / BINARY) as staged:
        archive = staged / "archive.tar.gz"
        fetch(URL, archive, ARCHIVE_MD5, ARCHIVE_MAX_BYTES)
        _extract(archive, staged)
        archive.unlink()


def _extract(archive: Path, folder: Path) -> None:
    """Take the six batches out under names of our own, so that no path in the archive is ever followed."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name in BINARY_FILES:
                member = tar.getmember(f"{BINARY}/{name}")
                source = tar.extractfile(member)
                if source is None or member.size != RECORDS * FORMAT.record_bytes:
                    raise OSError(f"{name} in the archive is not a CIFAR-10 batch")
                with (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise OSError(f"the archive cannot be read ({error})") from None


SOURCE = ImageSource("CIFAR-10", f"{BINARY}/", (BINARY, PYTHON), download, URL, augment.TUTORIAL, STAND_IN, read)


@dataset("cifar10", input=FORMAT.image_size, outputs=FORMAT.classes, source=SOURCE, examples=50_000)
def cifar10(folder: DataFolder) -> LabelledImages:
    """CIFAR-10: 50,000 training and 10,000 test images in ten classes."""
    return SOURCE.open(folder)
