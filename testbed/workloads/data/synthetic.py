"""Generated images in the place of none: what runs everywhere without a file."""

from __future__ import annotations

from testbed.workloads.data import cifar
from testbed.workloads.data.base import DataFolder, dataset
from testbed.workloads.data.labelled import ImageSource, LabelledImages

SOURCE = ImageSource(stand_in=cifar.STAND_IN)


@dataset("synthetic", input=cifar.FORMAT.image_size, outputs=cifar.FORMAT.classes, source=SOURCE)
def synthetic(folder: DataFolder) -> LabelledImages:
    """CIFAR-10's stand-in, asked for by its own name."""
    return SOURCE.open(folder)
