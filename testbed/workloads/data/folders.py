"""ImageNet as folders of JPEGs, one a class, decoded when a batch asks for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.errors import InputError
from testbed.workloads.data import augment
from testbed.workloads.data.base import DataFolder, Notice, dataset
from testbed.workloads.data.images import Content, Pixels, Split
from testbed.workloads.data.labelled import ImageSource, LabelledImages
from testbed.workloads.data.records import Format
from testbed.workloads.data.standin import StandIn

IMAGENET = "imagenet"
SIDE = 256  # pixels; AlexNet, section 2: the shorter side is scaled to it, and the middle cut out
SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class FolderImages:
    """The images of class folders, [n, 3, SIDE, SIDE] once decoded.

    Attributes
    ----------
    folders
        One a class.
    classes
        Class of each image: int64 [n].
    names
        File name of each: bytes [n]. (An array: a million path objects would take 200 MB in each process.)
    """

    folders: Sequence[Path]
    classes: NDArray[np.int64]
    names: NDArray[np.bytes_]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, SIDE, SIDE

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: NDArray[np.integer]) -> Tensor:
        taken = np.empty((len(indices), 3, SIDE, SIDE), np.uint8)
        for image, index in zip(taken, indices, strict=True):
            image[:] = decoded(self.folders[self.classes[index]] / os.fsdecode(self.names[index]), SIDE)
        return torch.from_numpy(taken)


def decoded(path: Path, side: int) -> Pixels:
    """Decode an image, scale its shorter side to `side` and cut the middle out: uint8 [3, side, side].

    Raises
    ------
    InputError
        The file cannot be read, or is truncated or damaged.
    """
    from PIL import Image, UnidentifiedImageError  # here, so that other data sets need no pillow

    try:
        with Image.open(path, formats=("JPEG", "PNG")) as image:
            image.draft("RGB", (side, side))  # a JPEG far too large is decoded at a half, a quarter or an eighth
            width, height = image.size
            edge = min(width, height)
            left, top = (width - edge) / 2, (height - edge) / 2
            box = (left, top, left + edge, top + edge)
            square = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "no image" if isinstance(error, UnidentifiedImageError) else error
        raise InputError(f"{path}: {reason}; replace the file or remove it") from None
    return np.asarray(square).transpose(2, 0, 1)


def read(root: Path, notice: Notice) -> Content | None:
    """Find ImageNet's training and validation images in a data folder; None where it is not there.

    `imagenet/train/<class>/*.JPEG` and `imagenet/val/<class>/*.JPEG`; any number of classes, the same in both.

    Raises
    ------
    InputError
        A part is missing or empty, or the classes of the two are not the same.
    """
    folder = root / IMAGENET
    if not folder.is_dir():
        return None
    classes = _classes(folder / "train")
    if (found := _classes(folder / "val")) != classes:
        odd = min(set(found) ^ set(classes))
        raise InputError(f"{folder}: class {odd} is in one of train/ and val/ only; lay out the same classes in both")
    train, test = (_split([folder / part / name for name in classes]) for part in ("train", "val"))
    return Content(train, test.mixed(), len(classes))


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; ImageNet is laid out as train/<class>/*.JPEG, val/<class>/*.JPEG")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not classes:
        raise InputError(
            f"{folder}: holds no class folders; the images must lie in one folder per class (the validation images, "
            "which come in one heap, are sorted by their ground truth first)"
        )
    return classes


def _split(folders: list[Path]) -> Split:
    names: list[bytes] = []
    counts: list[int] = []
    for folder in folders:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if entry.name.lower().endswith(SUFFIXES))
        if not found:
            raise InputError(f"{folder}: holds no image; put the class's JPEG files there or remove the folder")
        names += map(os.fsencode, found)
        counts.append(len(found))
    labels = np.repeat(np.arange(len(folders)), counts)
    return Split(FolderImages(folders, labels, np.array(names, np.bytes_)), labels)


SOURCE = ImageSource(
    "ImageNet",
    f"{IMAGENET}/train/ and {IMAGENET}/val/",
    (IMAGENET,),
    distortion=augment.CROP_AND_MIRROR,
    stand_in=StandIn("imagenet", Format("ImageNet", (3, 32, 32), 1000, label_bytes=2), 11, 2_000, enlarged=8),
    read=read,
)


@dataset("imagenet", input=(3, SIDE, SIDE), outputs=1000, source=SOURCE, examples=1_281_167)
def imagenet(folder: DataFolder) -> LabelledImages:
    """ImageNet, or any other images in folders of that layout, one a class."""
    return SOURCE.open(folder)
