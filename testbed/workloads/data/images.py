"""Images and labels as workers take them: a few at a time, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.workloads.keyed import Purpose, generator

Pixels = NDArray[np.uint8]
Size = tuple[int, int, int]  # channels, height, width


class ImageSet(Protocol):
    """uint8 images of one size, wherever they lie."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(n, channels, height, width)."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.integer]) -> Tensor:
        """Copy the images of `indices` (in their order) into a fresh uint8 tensor [len(indices), *shape[1:]]."""
        ...


class Images:
    """Images in one or more arrays [n, channels, height, width], which may be memory-mapped files."""

    def __init__(self, parts: Sequence[Pixels]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        channels, height, width = parts[0].shape[1:]
        self.shape = (int(self._ends[-1]), channels, height, width)

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, indices: NDArray[np.integer]) -> Tensor:
        taken = np.empty((len(indices), *self.shape[1:]), np.uint8)
        owner = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(owner):
            mine, part = owner == number, self._parts[number]
            taken[mine] = part[indices[mine] - (self._ends[number] - len(part))]
        return torch.from_numpy(taken)


@dataclass(frozen=True)
class Enlarged:
    """Images whose every pixel is a square of `factor` x `factor`."""

    images: ImageSet
    factor: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        count, channels, height, width = self.images.shape
        return count, channels, height * self.factor, width * self.factor

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: NDArray[np.integer]) -> Tensor:
        small = self.images.take(indices)
        return small.repeat_interleave(self.factor, 2).repeat_interleave(self.factor, 3)


@dataclass(frozen=True)
class Reordered:
    """The images of `order`, in that order."""

    images: ImageSet
    order: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.order), *self.images.shape[1:]

    def __len__(self) -> int:
        return len(self.order)

    def take(self, indices: NDArray[np.integer]) -> Tensor:
        return self.images.take(self.order[indices])


@dataclass(frozen=True)
class Split:
    """The training or the test part of a data set: images, and their classes (int64 [n], from 0)."""

    images: ImageSet
    labels: NDArray[np.int64]

    def mixed(self) -> Split:
        """Return the split in a random order, always the same one.

        For images that are stored class by class: an evaluation may take the first few.
        """
        order = generator(0, Purpose.MIX).permutation(len(self.labels))
        return Split(Reordered(self.images, order), self.labels[order])


class Content(NamedTuple):
    """What a data set's files hold."""

    train: Split
    test: Split
    classes: int
