"""MNIST on disk: its four idx files, packed or not, and the download.

An idx file is a big-endian header, a magic number and the length of each dimension, and then the bytes (LeCun, Cortes
and Burges, "The MNIST database of handwritten digits").
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError
from testbed.workloads.data import augment
from testbed.workloads.data.base import DataFolder, Notice, dataset
from testbed.workloads.data.download import all_or_nothing, fetch
from testbed.workloads.data.images import Content, Images, Size, Split
from testbed.workloads.data.labelled import ImageSource, LabelledImages
from testbed.workloads.data.records import Format, store
from testbed.workloads.data.standin import StandIn

IMAGE_SIZE: Size = (1, 28, 28)
CLASSES = 10
TRAIN, TEST = 60_000, 10_000  # images
PACKED = "mnist"
UNPACKED = "mnist-idx"  # made from the packed files, so that workers share one copy
FOLDERS = (UNPACKED, PACKED, "MNIST/raw")  # the last is torchvision's

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # the authors' own site no longer serves the files
MD5 = {  # of the packed files
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
SHA256 = {  # of the files that have these md5s; our own, as there are no official ones
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FILES = tuple(MD5)
FILE_MAX_BYTES = 20_000_000


def read(root: Path, notice: Notice) -> Content | None:
    """Read MNIST from a data folder; None where it is not there.

    Raises
    ------
    InputError
        A file is missing, damaged, of another size, or holds a label above 9.
    """
    folder = next((root / name for name in FOLDERS if (root / name).is_dir()), None)
    if folder is None:
        return None
    shapes = [(TRAIN, 28, 28), (TRAIN,), (TEST, 28, 28), (TEST,)]
    files = [_idx(folder, name, shape) for name, shape in zip(FILES, shapes, strict=True)]
    packed = not all((folder / name).is_file() for name in FILES)
    if packed and folder != root / UNPACKED and store(files, FILES, root / UNPACKED):
        notice(f"MNIST: unpacked {folder} to {root / UNPACKED}, which workers can share")
        return read(root, notice)
    bodies = [file[len(_header(shape)) :].reshape(shape) for file, shape in zip(files, shapes, strict=True)]
    train, test = (Split(Images([bodies[i][:, None]]), bodies[i + 1].astype(np.int64)) for i in (0, 2))
    return Content(train, test, CLASSES)


def _idx(folder: Path, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the bytes of a whole idx file, header included: mapped where it is unpacked, else read."""
    header, path = _header(shape), folder / name
    size_bytes = len(header) + int(np.prod(shape))
    try:
        if path.is_file():
            file: NDArray[np.uint8] = np.asarray(np.memmap(path, np.uint8, "r"))
        else:
            path = path.with_name(f"{name}.gz")
            with gzip.open(path) as packed:
                file = np.frombuffer(packed.read(size_bytes + 1), np.uint8)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; put a whole copy there") from None
    if len(file) != size_bytes or file[: len(header)].tobytes() != header:
        raise InputError(f"{path}: not MNIST's file of {size_bytes} bytes; put a whole copy there")
    if len(shape) == 1 and (highest := int(file[len(header) :].max())) >= CLASSES:
        raise InputError(f"{path}: holds label {highest}, MNIST has 0 to {CLASSES - 1}; the file is damaged")
    return file


def _header(shape: tuple[int, ...]) -> bytes:
    unsigned_byte = 0x08
    return np.array([unsigned_byte << 8 | len(shape), *shape], ">i4").tobytes()


def download(root: Path) -> None:
    """Fetch the four packed files into the data folder, all or nothing.

    Raises
    ------
    OSError
        No network, no room, too slow, or what came is not the official file.
    """
    with all_or_nothing(root / PACKED) as staged:
        for name, md5 in MD5.items():
            fetch(f"{URL}{name}.gz", staged / f"{name}.gz", md5, FILE_MAX_BYTES, SHA256[name])


SOURCE = ImageSource(
    "MNIST",
    f"{PACKED}/",
    FOLDERS,
    download,
    URL,
    augment.NONE,  # TernGrad, section 4.1
    StandIn("mnist", Format("MNIST", IMAGE_SIZE, CLASSES), batches=7, images=10_000),
    read,
)


@dataset("mnist", input=IMAGE_SIZE, outputs=CLASSES, source=SOURCE, examples=60_000)
def mnist(folder: DataFolder) -> LabelledImages:
    """MNIST: 60,000 training and 10,000 test images of digits."""
    return SOURCE.open(folder)
