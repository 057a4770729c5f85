"""Data sets by name, their images memory-mapped so that all workers of a machine share one copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError, nearest
from testbed.workloads.data import augment, cifar, folders, mnist, standin, tinyimagenet
from testbed.workloads.data.augment import Distortion
from testbed.workloads.data.images import Content, ImageSet, Notice, Size
from testbed.workloads.data.standin import StandIn


@dataclass(frozen=True)
class Dataset:
    """Images and labels of one data set.

    Attributes
    ----------
    name
        What was asked for.
    train_images, test_images
        See `images.ImageSet`.
    train_labels, test_labels
        int64 [n], from 0.
    classes
        Number of classes.
    real
        False when the images are generated; every result then has to say so.
    note
        One line for results and plots: what the images are.
    distortion
        What happens to training images.
    """

    name: str
    train_images: ImageSet
    train_labels: NDArray[np.int64]
    test_images: ImageSet
    test_labels: NDArray[np.int64]
    classes: int
    real: bool
    note: str
    distortion: Distortion = augment.TUTORIAL


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes
    ----------
    title
        Its proper name.
    image_size
        (channels, height, width) as read, before cropping.
    distortion
        What happens to training images.
    stand_in
        What takes its place where it is missing.
    folder
        What to put into the data folder, for whoever has the set.
    folders
        Names there under which `read` finds the set.
    read
        Reads it from the data folder, None when it is not there.
    download
        Fetches it to the data folder; None where that cannot be done.
    url
        From where.
    """

    title: str
    image_size: Size
    distortion: Distortion
    stand_in: StandIn
    folder: str = ""
    folders: tuple[str, ...] = ()
    read: Callable[[Path, Notice], Content | None] = lambda folder, notice: None
    download: Callable[[Path], None] | None = None
    url: str = ""


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "CIFAR-10",
        cifar.FORMAT.image_size,
        augment.TUTORIAL,
        standin.CIFAR10,
        f"{cifar.BINARY}/",
        (cifar.BINARY, cifar.PYTHON),
        cifar.read,
        cifar.download,
        cifar.URL,
    ),
    "mnist": Source(
        "MNIST",
        mnist.IMAGE_SIZE,
        augment.NONE,  # TernGrad, section 4.1
        standin.MNIST,
        f"{mnist.PACKED}/",
        mnist.FOLDERS,
        mnist.read,
        mnist.download,
        mnist.URL,
    ),
    "tiny-imagenet-32": Source(
        "Tiny-ImageNet",
        tinyimagenet.FORMAT.image_size,
        augment.CROP_AND_MIRROR,
        standin.TINY_IMAGENET,
        f"{tinyimagenet.FOLDER}/ or the official {tinyimagenet.OFFICIAL}/",
        (tinyimagenet.FOLDER, tinyimagenet.OFFICIAL),
        tinyimagenet.read,
    ),
    "imagenet": Source(
        "ImageNet",
        (3, folders.SIDE, folders.SIDE),
        augment.CROP_AND_MIRROR,
        standin.IMAGENET,
        f"{folders.IMAGENET}/train/ and {folders.IMAGENET}/val/",
        (folders.IMAGENET,),
        folders.read,
    ),
    "synthetic": Source("", cifar.FORMAT.image_size, augment.TUTORIAL, standin.CIFAR10),
}


def root() -> Path:
    """Return the folder data sets lie in: `$TESTBED_DATA`, by default `~/.cache/wan-testbed`."""
    return Path(os.environ.get("TESTBED_DATA") or "~/.cache/wan-testbed").expanduser()


def source(name: str) -> Source:
    """Look a data set up.

    Raises
    ------
    InputError
        There is no data set of that name.
    """
    try:
        return SOURCES[name]
    except KeyError:
        raise InputError(f"no data set '{name}'{nearest(name, SOURCES)}") from None


def load(name: str, *, allow_download: bool = True, on_notice: Notice = lambda line: None) -> Dataset:
    """Open a data set, obtaining or generating it first where it is missing.

    Several processes may do so at once, but only the first call need do the work: open a data set in the
    parent before workers start.

    Parameters
    ----------
    name
        A key of `SOURCES`.
    allow_download
        Whether a missing set may be fetched from its official site.
    on_notice
        Called with a line about anything the user should know (a download, a stand-in).

    Raises
    ------
    InputError
        No such data set, or a file of it is truncated or corrupt; the message names the file.
    """
    origin, folder = source(name), root()
    content = origin.read(folder, on_notice)
    if content is None and origin.download is not None and allow_download:
        content = _downloaded(origin, folder, on_notice)
    real, note = content is not None, origin.title
    if content is None:
        note = "generated images"
        if origin.title:
            note = f"generated stand-in, not {origin.title}"
            on_notice(
                f"{origin.title} is not in {folder}: training on a generated stand-in of the same shape, so accuracies "
                f"are not {origin.title}'s; to use the real one, put {origin.folder} there"
            )
        content = origin.stand_in.content(folder)
    train, test, classes = content
    return Dataset(name, train.images, train.labels, test.images, test.labels, classes, real, note, origin.distortion)


def _downloaded(origin: Source, folder: Path, notice: Notice) -> Content | None:
    notice(f"{origin.title} is not in {folder}; downloading {origin.url}")
    try:
        if origin.download is not None:
            origin.download(folder)
    except OSError as error:
        notice(f"{origin.title} cannot be downloaded: {error}")
    return origin.read(folder, notice)
