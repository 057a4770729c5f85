"""Images and labels as workers take them: a few at a time, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.workloads.keyed import Purpose, generator

Pixels = NDArray[np.uint8]
Size = tuple[int, int, int]  # channels, height, width
Lookup = Callable[[Tensor], Tensor]  # indexes (int64 [n]) on a device -> images there
MOST_ON_DEVICE = 8 * 2**30  # bytes of images that are kept on a device
READ_AT_ONCE = 10_000


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

    def at(self, device: torch.device) -> Lookup | None:
        """All of them on a device; None where they are too many for it."""
        if prod(self.shape) > MOST_ON_DEVICE:
            return None
        parts = np.split(np.arange(len(self)), range(READ_AT_ONCE, len(self), READ_AT_ONCE))
        there = torch.cat([self.take(part).to(device) for part in parts])
        return lambda indexes: there.index_select(0, indexes)


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
        return self._enlarged(self.images.take(indices))

    def at(self, device: torch.device) -> Lookup | None:
        """On a device as they are there before."""
        small = located(self.images, device)
        return None if small is None else lambda indexes: self._enlarged(small(indexes))

    def _enlarged(self, small: Tensor) -> Tensor:
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

    def at(self, device: torch.device) -> Lookup | None:
        """On a device as they are there, and their order."""
        images = located(self.images, device)
        if images is None:
            return None
        order = torch.from_numpy(self.order).to(device)
        return lambda indexes: images(order.index_select(0, indexes))


def located(images: ImageSet, device: torch.device) -> Lookup | None:
    """What looks images up on a device; None where they cannot lie there, such as files that are read when needed."""
    return images.at(device) if isinstance(images, Images | Enlarged | Reordered) else None


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
