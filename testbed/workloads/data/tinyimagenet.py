"""Tiny-ImageNet at 32x32: 200 classes of ImageNet, as two files of records.

The official set (Stanford's CS231n, `tiny-imagenet-200/`: 500 training and 50 validation images of 64x64 a class) is
converted to them once. It stands under ImageNet's terms of access, so it is not fetched: who accepts these, puts it
there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from testbed.errors import InputError
from testbed.workloads.data import augment
from testbed.workloads.data.base import DataFolder, Notice, dataset
from testbed.workloads.data.folders import decoded
from testbed.workloads.data.images import Content
from testbed.workloads.data.labelled import ImageSource, LabelledImages
from testbed.workloads.data.records import Format, Records, store
from testbed.workloads.data.standin import StandIn

FORMAT = Format("Tiny-ImageNet", (3, 32, 32), classes=200, label_bytes=2)
FOLDER, FILES = "tiny-imagenet-32", ("train.bin", "val.bin")
OFFICIAL = "tiny-imagenet-200"


def read(root: Path, notice: Notice) -> Content | None:
    """Read the set from a data folder, converted or official; None where it is not there.

    Raises
    ------
    InputError
        A file is missing or damaged.
    """
    if not (root / FOLDER).is_dir() and (root / OFFICIAL).is_dir():
        notice(f"Tiny-ImageNet: converting {root / OFFICIAL} to {root / FOLDER} at 32x32, which takes a minute")
        batches = _converted(root / OFFICIAL)
        if not store(batches, FILES, root / FOLDER):
            return _content(batches)
    return _content([FORMAT.map(root / FOLDER / name) for name in FILES]) if (root / FOLDER).is_dir() else None


def _content(batches: list[Records]) -> Content:
    train, test = batches
    return Content(FORMAT.split([train]), FORMAT.split([test]).mixed(), FORMAT.classes)


def _converted(folder: Path) -> list[Records]:
    """Decode the official set; its validation images are assigned to classes by a table."""
    classes = sorted(path.name for path in (folder / "train").glob("*") if path.is_dir())
    label = {name: number for number, name in enumerate(classes)}
    if len(classes) != FORMAT.classes:
        raise InputError(
            f"{folder / 'train'}: {len(classes)} class folders, expected {FORMAT.classes}; put a whole copy there"
        )
    train = [(path, label[path.parts[-3]]) for path in sorted((folder / "train").glob("*/images/*.JPEG"))]
    table = folder / "val" / "val_annotations.txt"
    try:
        rows = [line.split("\t") for line in table.read_text().splitlines()]
        val = [(folder / "val" / "images" / Path(name).name, label[wnid]) for name, wnid, *_ in rows]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{table}: {error}; put a whole copy of the data set there") from None
    return [_records(part) for part in (train, val)]


def _records(files: list[tuple[Path, int]]) -> Records:
    records = np.empty((len(files), FORMAT.record_bytes), np.uint8)
    for record, (path, label) in zip(records, files, strict=True):
        record[:2] = label & 255, label >> 8
        record[2:] = decoded(path, 32).ravel()
    return records


SOURCE = ImageSource(
    "Tiny-ImageNet",
    f"{FOLDER}/ or the official {OFFICIAL}/",
    (FOLDER, OFFICIAL),
    distortion=augment.CROP_AND_MIRROR,
    stand_in=StandIn("tiny-imagenet-32", FORMAT, batches=11, images=2_000),
    read=read,
)


@dataset("tiny-imagenet-32", input=FORMAT.image_size, outputs=FORMAT.classes, source=SOURCE)
def tiny_imagenet(folder: DataFolder) -> LabelledImages:
    """Tiny-ImageNet: 100,000 training and 10,000 test images in 200 classes."""
    return SOURCE.open(folder)
