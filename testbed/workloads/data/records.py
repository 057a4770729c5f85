"""Data sets as files of records, a label and then the pixels of one image: checked, mapped, written.

CIFAR-10's binary layout is one of this kind; the generated stand-ins and Tiny-ImageNet at 32x32 follow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError
from testbed.workloads.data.download import all_or_nothing
from testbed.workloads.data.images import Images, Size, Split

Records = NDArray[np.uint8]  # [n, label bytes + pixel bytes]


@dataclass(frozen=True)
class Format:
    """What a record of one data set looks like.

    Attributes
    ----------
    title
        The data set's name, in messages.
    image_size
        (channels, height, width); pixels are stored in this order, a byte each.
    classes
        Labels are below it.
    label_bytes
        1 or 2; the lower byte comes first.
    """

    title: str
    image_size: Size
    classes: int
    label_bytes: int = 1

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + prod(self.image_size)

    def map(self, path: Path, records: int | None = None) -> Records:
        """Map one file; `records` is what it must hold, None for any number above zero.

        Raises
        ------
        InputError
            The file is missing, of a wrong size, or holds a label that is no class.
        """
        try:
            size_bytes = path.stat().st_size
            count = max(1, round(size_bytes / self.record_bytes)) if records is None else records
            if size_bytes != count * self.record_bytes:
                raise InputError(
                    f"{path}: {size_bytes} bytes, expected {count * self.record_bytes}; the file is damaged: delete "
                    "its folder to have it made again, or put a whole copy there"
                )
            batch = np.asarray(np.memmap(path, np.uint8, "r", shape=(count, self.record_bytes)))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; put a whole copy of {self.title} there") from None
        return self.checked(batch, path)

    def checked(self, batch: Records, path: Path) -> Records:
        """Return `batch`, read from `path`, or raise InputError where a label is no class."""
        if (highest := int(self.labels(batch).max())) >= self.classes:
            raise InputError(
                f"{path}: holds label {highest}, {self.title} has 0 to {self.classes - 1}; the file is damaged"
            )
        return batch

    def labels(self, batch: Records) -> NDArray[np.int64]:
        """The labels of a batch: int64 [n]."""
        weights = 256 ** np.arange(self.label_bytes)
        return batch[:, : self.label_bytes].astype(np.int64) @ weights

    def split(self, batches: Iterable[Records]) -> Split:
        """Take batches for one split of a data set, without copying images."""
        batches = list(batches)
        images = Images([batch[:, self.label_bytes :].reshape(-1, *self.image_size) for batch in batches])
        return Split(images, np.concatenate([self.labels(batch) for batch in batches]))


def store(batches: Iterable[Records], names: Iterable[str], folder: Path) -> bool:
    """Write each batch under its name, all or nothing; return whether `folder` is there afterwards."""
    try:
        with all_or_nothing(folder) as staged:
            for name, batch in zip(names, batches, strict=True):
                batch.tofile(staged / name)
    except OSError:  # read-only or full
        return False
    return True
