"""The generated stand-ins: images of a real set's size and classes that a network has to learn to tell apart.

A class is a set of motifs, smooth random colour fields, no two alike. An image shows one motif of its class,
shifted and maybe mirrored, in front of another such field that says nothing of the class, under noise. What
has to be learned is many patterns at several places, not one average picture a class, so that the accuracy keeps
rising for hundreds of steps: with CIFAR-10's stand-in, CifarNet at batch 128 and rate 0.1, falling to zero over 400
steps, is at 0.27 after 100, 0.37 after 200, 0.52 after 300 and 0.66 at the end. It stands for no real data; it lets
everything run without a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.workloads.data.images import Content, Enlarged, Size, Split
from testbed.workloads.data.records import Format, Records, store
from testbed.workloads.keyed import Purpose, generator

VERSION = 1  # in the caches' names: raise it when the images change
MOTIFS = 12  # per class
MAX_MOTIFS = 400  # of all classes: with hundreds of classes each has fewer
BACKGROUNDS = 400
MARGIN = 16  # pixels by which the fields are larger than the images, which are windows of them
SHIFT = 5  # possible offsets of a motif, in each direction
GRAIN = 3.0  # correlation length of the fields, pixels
MOTIF, BACKGROUND, NOISE = 34, 24, 12  # standard deviations, of 255


@dataclass(frozen=True)
class StandIn:
    """The stand-in for one data set.

    Attributes
    ----------
    name
        Of its cache, a folder.
    format
        Of its records.
    batches, images
        How many batches, the last one being the test set, and how many images in each.
    enlarged
        Factor by which the images are then enlarged.
    """

    name: str
    format: Format
    batches: int
    images: int
    enlarged: int = 1

    def content(self, root: Path) -> Content:
        """The data set, generated once and kept in `root` where that can be written."""
        *train, test = records(root, self)
        return Content(self._split(train), self._split([test]), self.format.classes)

    def _split(self, batches: list[Records]) -> Split:
        split = self.format.split(batches)
        return split if self.enlarged == 1 else Split(Enlarged(split.images, self.enlarged), split.labels)


def records(root: Path, kind: StandIn) -> list[Records]:
    """Return the batches of `kind`, generated once and kept in `root` where that can be written."""
    cached = root / f"stand-in-{VERSION}-{kind.name}"
    names = [*(f"data_batch_{number}.bin" for number in range(1, kind.batches)), "test_batch.bin"]
    if not cached.is_dir():
        batches = generate(kind.batches, kind.images, kind.format)
        if not store(batches, names, cached):
            return batches
    return [kind.format.map(cached / name, kind.images) for name in names]


def generate(batches: int, images: int, form: Format) -> list[Records]:
    """Generate `batches` arrays of `images` records, always the same ones."""
    random = generator(0, Purpose.STAND_IN)
    per_class = max(1, min(MOTIFS, MAX_MOTIFS // form.classes))
    motifs = _fields(random, form.classes * per_class, form.image_size, MOTIF)
    backgrounds = _fields(random, BACKGROUNDS, form.image_size, BACKGROUND)
    return [
        _batch(generator(0, Purpose.STAND_IN, 1 + number), images, form, motifs, backgrounds)
        for number in range(batches)
    ]


def _fields(random: np.random.Generator, count: int, size: Size, deviation: float) -> NDArray[np.int16]:
    """Return smooth random fields, a MARGIN larger than `size`: white noise through a Gaussian low-pass filter."""
    channels, *canvas = size[0], size[1] + MARGIN, size[2] + MARGIN
    down, across = (np.fft.fftfreq(length) for length in canvas)
    response = np.exp(-2 * (np.pi * GRAIN) ** 2 * (down[:, None] ** 2 + across[None, :] ** 2))
    white = random.standard_normal((count, channels, *canvas))
    smooth = np.fft.ifft2(np.fft.fft2(white) * response).real
    return np.rint(smooth * (deviation / smooth.std())).astype(np.int16)


def _batch(
    random: np.random.Generator,
    images: int,
    form: Format,
    motifs: NDArray[np.int16],
    backgrounds: NDArray[np.int16],
) -> Records:
    """Compose one batch; integer arithmetic, so that it is the same on every machine."""
    per_class = len(motifs) // form.classes
    _, height, width = form.image_size
    labels = random.integers(0, form.classes, images)
    motif = labels * per_class + random.integers(0, per_class, images)
    background = random.integers(0, len(backgrounds), images)
    places = random.integers(0, [[SHIFT], [SHIFT], [MARGIN + 1], [MARGIN + 1]], (4, images))
    mirrored = random.random(images) < 0.5
    grain = np.rint(random.standard_normal((64, *form.image_size)) * NOISE).astype(np.int16)
    noise = random.integers(0, len(grain), images)
    batch = np.empty((images, form.record_bytes), np.uint8)
    for byte in range(form.label_bytes):
        batch[:, byte] = labels >> 8 * byte
    for i, (top, left, back_top, back_left) in enumerate(places.T):
        front = motifs[motif[i], :, top : top + height, left : left + width]
        if mirrored[i]:
            front = front[:, :, ::-1]
        back = backgrounds[background[i], :, back_top : back_top + height, back_left : back_left + width]
        batch[i, form.label_bytes :] = np.clip(front + back + grain[noise[i]] + 128, 0, 255).ravel()
    return batch
