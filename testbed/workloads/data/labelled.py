"""Labelled images as a data set: from files where they are, or generated in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from testbed.gpu.notes import note
from testbed.workloads.data import augment
from testbed.workloads.data.augment import Distortion
from testbed.workloads.data.base import ACCURACY, TOP5, DataFolder, Dataset, Indices, Notice, Shape, Source
from testbed.workloads.data.images import Content, ImageSet, Lookup, Size, located
from testbed.workloads.data.standin import StandIn

MANY = 100  # classes, of which the five likeliest are looked at, too: as with ImageNet


class LabelledImages(Dataset):
    """Images in classes; a model may take a piece of them.

    Parameters
    ----------
    content
        The images and their labels, and the number of classes.
    distortion
        What happens to training images, beside the random crop to the model's size.
    real, note
        As `Dataset`'s.
    """

    def __init__(
        self, content: Content, distortion: Distortion = augment.TUTORIAL, *, real: bool = True, note: str = ""
    ) -> None:
        train, test, self.outputs = content
        self.train_images, self.train_labels = train.images, train.labels
        self.test_images, self.test_labels = test.images, test.labels
        self.train_examples, self.test_examples = len(train.images), len(test.images)
        self.labels = train.labels
        if self.outputs >= MANY:
            self.metrics = {"accuracy": ACCURACY, "top5_accuracy": TOP5}
        self.size: Size = train.images.shape[1:]
        self.distortion, self.real, self.note = distortion, real, note
        self.device = torch.device("cpu")
        self._lookup: Lookup | None = None  # where the training images are on the device, too

    @property
    def input(self) -> Shape:  # type: ignore[override]
        """(channels, height, width) once cropped."""
        return self.size

    def fit(self, input: Shape | None, device: torch.device) -> Self:
        """Crop the images to `input`, which must not be larger than they are."""
        fitted = copy(self)
        fitted.device = device
        if device.type != "cpu":
            fitted._lie_there()
        if input is not None:
            augment.check_crop(self.train_images.shape[1:], input)
            fitted.size = (input[0], input[1], input[2])
        return fitted

    def train_batch(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Images as a model takes them, float32 [n, *size], cropped in the middle unless they are distorted."""
        images, labels = self._taken(self.train_images, self.train_labels, indices)
        if random is None:
            return augment.center(images, self.size), labels
        return augment.distort(images, self.size, random, self.distortion), labels

    def _lie_there(self) -> None:
        """Keep the training images and their labels on the device."""
        self._lookup = located(self.train_images, self.device)
        if self._lookup is None:
            note(f"data set '{self.name}' is not kept on the device: each batch is made on the CPU and moved there")
            return
        self._labels_there = torch.from_numpy(self.train_labels).to(self.device)

    def drawn(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, ...]:
        """A row an image, int32: which one it is, and what is drawn for it (`augment.Draws`), a column each."""
        if self._lookup is None:
            return tuple(part.cpu() for part in self.train_batch(indices, random))
        columns = [indices]
        if random is not None:
            shape = self.train_images.shape[1:]
            draws = augment.drawn(shape, len(indices), self.size, random, self.distortion)
            columns += [*draws.corners, *map(_bits, draws.others)]
        rows = np.empty((len(indices), len(columns)), np.int32)
        for number, column in enumerate(columns):
            rows[:, number] = column
        return (torch.from_numpy(rows),)

    def made(self, drawn: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """As `train_batch` makes them on the CPU, to rounding."""
        if self._lookup is None:
            return super().made(drawn)
        (rows,) = drawn
        indexes = rows[:, 0].long()
        images, labels = self._lookup(indexes), self._labels_there.index_select(0, indexes)
        if rows.shape[1] == 1:
            return augment.center(images, self.size), labels
        mirrored, *others = (column.contiguous() for column in rows[:, 3:].unbind(1))
        draws = augment.Draws(rows[:, 1:3].long().T, mirrored > 0, *(column.view(torch.float32) for column in others))
        return augment.distorted(images, self.size, draws.used_by(self.distortion), self.distortion), labels

    def test_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Images cropped in the middle, float32 [n, *size]."""
        images, labels = self._taken(self.test_images, self.test_labels, indices)
        return augment.center(images, self.size), labels

    def total_loss(self, outputs: Tensor, targets: Tensor) -> float:
        """A sum, not a mean times n: tests that were recorded before are repeated to the last bit."""
        return functional.cross_entropy(outputs, targets, reduction="sum").item()

    def _taken(self, images: ImageSet, labels: Indices, indices: Indices) -> tuple[Tensor, Tensor]:
        return images.take(indices).to(self.device), torch.from_numpy(labels[indices]).to(self.device)


def _bits(values: np.ndarray | None) -> np.ndarray:
    """What is drawn for each image as whole numbers: a float's bits; zeros where nothing is."""
    if values is None:
        return np.zeros((), np.int32)
    return values.view(np.int32) if values.dtype == np.float32 else values


@dataclass(frozen=True)
class ImageSource(Source):
    """Where labelled images come from.

    Attributes
    ----------
    distortion
        What happens to training images.
    stand_in
        What takes the place of files that are missing.
    read
        Reads the set from the data folder, None when it is not there.
    """

    distortion: Distortion = augment.TUTORIAL
    stand_in: StandIn | None = None
    read: Callable[[Path, Notice], Content | None] = lambda folder, notice: None

    def open(self, folder: DataFolder) -> LabelledImages:
        """Read the set, or download it and read it, or else take the stand-in."""
        assert self.stand_in is not None
        content = self.read(folder.path, folder.notice)
        if content is None and self.download is not None and folder.allow_download:
            content = self._downloaded(folder)
        if content is not None:
            return LabelledImages(content, self.distortion, note=self.title)
        note = "generated images"
        if self.title:
            note = f"generated stand-in, not {self.title}"
            folder.notice(
                f"{self.title} is not in {folder.path}: training on a generated stand-in of the same shape, so "
                f"accuracies are not {self.title}'s; to use the real one, put {self.folder} there"
            )
        return LabelledImages(self.stand_in.content(folder.path), self.distortion, real=False, note=note)

    def _downloaded(self, folder: DataFolder) -> Content | None:
        folder.notice(f"{self.title} is not in {folder.path}; downloading {self.url}")
        try:
            if self.download is not None:
                self.download(folder.path)
        except OSError as error:
            folder.notice(f"{self.title} cannot be downloaded: {error}")
        return self.read(folder.path, folder.notice)
