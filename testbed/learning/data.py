"""Data sets by name, their images memory-mapped so that all workers of a machine share one copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.errors import InputError, nearest
from testbed.learning import cifar, standin

Pixels = NDArray[np.uint8]
Notice = Callable[[str], None]


class Images:
    """uint8 [n, channels, height, width], in one or more parts that may be memory-mapped files."""

    def __init__(self, parts: Sequence[Pixels]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, indices: NDArray[np.integer]) -> Tensor:
        """Copy the images of `indices` (in their order) into a fresh uint8 tensor."""
        taken = np.empty((len(indices), *self.shape[1:]), np.uint8)
        owner = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(owner):
            mine, part = owner == number, self._parts[number]
            taken[mine] = part[indices[mine] - (self._ends[number] - len(part))]
        return torch.from_numpy(taken)


@dataclass(frozen=True)
class Dataset:
    """Images and labels of one data set.

    Attributes
    ----------
    name
        What was asked for.
    train_images, test_images
        See `Images`.
    train_labels, test_labels
        int64 [n], from 0.
    classes
        Number of classes.
    real
        False when the images are generated; every result then has to say so.
    note
        One line for results and plots: what the images are.
    """

    name: str
    train_images: Images
    train_labels: NDArray[np.int64]
    test_images: Images
    test_labels: NDArray[np.int64]
    classes: int
    real: bool
    note: str


def root() -> Path:
    """Return the folder data sets lie in: `$TESTBED_DATA`, by default `~/.cache/wan-testbed`."""
    return Path(os.environ.get("TESTBED_DATA") or "~/.cache/wan-testbed").expanduser()


def load(name: str, *, allow_download: bool = True, on_notice: Notice = lambda line: None) -> Dataset:
    """Open a data set, obtaining or generating it first where it is missing.

    Several processes may do so at once, but only the first call need do the work: open a data set in the
    parent before workers start.

    Parameters
    ----------
    name
        A key of `DATASETS`.
    allow_download
        Whether a missing set may be fetched from its official site.
    on_notice
        Called with a line about anything the user should know (a download, a stand-in).

    Raises
    ------
    InputError
        No such data set, or a file of it is truncated or corrupt; the message names the file.
    """
    check_name(name)
    return DATASETS[name](root(), allow_download, on_notice)


def check_name(name: str) -> None:
    """Raise InputError unless `name` is a data set."""
    if name not in DATASETS:
        raise InputError(f"no data set '{name}'{nearest(name, DATASETS)}")


def _cifar10(folder: Path, allow_download: bool, notice: Notice) -> Dataset:
    binary = folder / cifar.BINARY
    if not binary.is_dir() and (folder / cifar.PYTHON).is_dir():
        batches = cifar.read_python(folder / cifar.PYTHON)
        if not cifar.store(batches, binary):  # a read-only folder: every process then holds its own copy
            return _from_records("cifar10", batches, real=True, note="CIFAR-10")
        notice(f"CIFAR-10: converted {folder / cifar.PYTHON} to {binary}, which workers can share")
    if not binary.is_dir() and allow_download:
        notice(f"CIFAR-10 is not in {folder}; downloading {cifar.URL}")
        try:
            cifar.download(binary)
        except OSError as error:
            notice(f"CIFAR-10 cannot be downloaded: {error}")
    if binary.is_dir():
        return _from_records("cifar10", cifar.read_binary(binary), real=True, note="CIFAR-10")
    notice(
        f"CIFAR-10 is not in {folder}: training on a generated stand-in of the same shape, so accuracies are not "
        f"CIFAR-10's; to use the real one, put {cifar.BINARY}/ there"
    )
    note = "generated stand-in, not CIFAR-10"
    return _from_records("cifar10", standin.records(folder), real=False, note=note)


def _synthetic(folder: Path, allow_download: bool, notice: Notice) -> Dataset:
    return _from_records("synthetic", standin.records(folder), real=False, note="generated images")


def _from_records(name: str, batches: list[Pixels], *, real: bool, note: str) -> Dataset:
    """Split CIFAR records, the last batch being the test set, into images and labels (without copying images)."""
    images = [batch[:, 1:].reshape(-1, *cifar.SHAPE) for batch in batches]
    labels = [batch[:, 0].astype(np.int64) for batch in batches]
    train, test = Images(images[:-1]), Images(images[-1:])
    return Dataset(name, train, np.concatenate(labels[:-1]), test, labels[-1], cifar.CLASSES, real, note)


DATASETS: dict[str, Callable[[Path, bool, Notice], Dataset]] = {
    "cifar10": _cifar10,
    "synthetic": _synthetic,
}
