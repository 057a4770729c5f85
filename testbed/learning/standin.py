"""The generated stand-in: ten classes of 32x32 images that take a network hundreds of steps to tell apart.

A class is a set of motifs, smooth random colour fields, no two alike. An image shows one motif of its class,
shifted and maybe mirrored, in front of another such field that says nothing of the class, under noise. What
has to be learned is many patterns at several places, not one average picture a class, so that the accuracy keeps
rising for hundreds of steps: CifarNet at batch 128 and rate 0.1, falling to zero over 400 steps, is at 0.27 after
100, 0.37 after 200, 0.52 after 300 and 0.66 at the end. It stands for no real data; it lets everything run without
a network.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.learning import cifar
from testbed.learning.keyed import Purpose, generator

VERSION = 1  # in the cache's name: raise it when the images change
FOLDER = f"stand-in-{VERSION}-batches-bin"
MOTIFS = 12  # per class
BACKGROUNDS = 400
CANVAS = 48  # pixels; images are 32x32 windows of it
SHIFT = 5  # possible offsets of a motif, in each direction
GRAIN = 3.0  # correlation length of the fields, pixels
MOTIF, BACKGROUND, NOISE = 34, 24, 12  # standard deviations, of 255


def records(folder: Path) -> list[cifar.Records]:
    """Return six batches in CIFAR-10's record layout, generated once and kept in `folder` where it can be written."""
    cached = folder / FOLDER
    if not cached.is_dir():
        batches = generate()
        if not cifar.store(batches, cached):
            return batches
    return cifar.read_binary(cached)


def generate(batches: int = 6, images: int = cifar.RECORDS) -> list[cifar.Records]:
    """Generate `batches` arrays of `images` records, always the same ones."""
    random = generator(0, Purpose.STAND_IN)
    motifs = _fields(random, cifar.CLASSES * MOTIFS, MOTIF)
    backgrounds = _fields(random, BACKGROUNDS, BACKGROUND)
    return [
        _batch(generator(0, Purpose.STAND_IN, 1 + number), images, motifs, backgrounds) for number in range(batches)
    ]


def _fields(random: np.random.Generator, count: int, deviation: float) -> NDArray[np.int16]:
    """Return smooth random fields [count, 3, CANVAS, CANVAS]: white noise through a Gaussian low-pass filter."""
    frequency = np.fft.fftfreq(CANVAS)
    response = np.exp(-2 * (np.pi * GRAIN) ** 2 * (frequency[:, None] ** 2 + frequency[None, :] ** 2))
    white = random.standard_normal((count, 3, CANVAS, CANVAS))
    smooth = np.fft.ifft2(np.fft.fft2(white) * response).real
    return np.rint(smooth * (deviation / smooth.std())).astype(np.int16)


def _batch(
    random: np.random.Generator, images: int, motifs: NDArray[np.int16], backgrounds: NDArray[np.int16]
) -> cifar.Records:
    """Compose one batch; integer arithmetic, so that it is the same on every machine."""
    labels = random.integers(0, cifar.CLASSES, images)
    motif = labels * MOTIFS + random.integers(0, MOTIFS, images)
    background = random.integers(0, len(backgrounds), images)
    places = random.integers(0, [[SHIFT], [SHIFT], [CANVAS - 31], [CANVAS - 31]], (4, images))
    mirrored = random.random(images) < 0.5
    grain = np.rint(random.standard_normal((64, *cifar.SHAPE)) * NOISE).astype(np.int16)
    noise = random.integers(0, len(grain), images)
    batch = np.empty((images, cifar.RECORD_BYTES), np.uint8)
    batch[:, 0] = labels
    for i, (top, left, back_top, back_left) in enumerate(places.T):
        front = motifs[motif[i], :, top : top + 32, left : left + 32]
        if mirrored[i]:
            front = front[:, :, ::-1]
        back = backgrounds[background[i], :, back_top : back_top + 32, back_left : back_left + 32]
        batch[i, 1:] = np.clip(front + back + grain[noise[i]] + 128, 0, 255).ravel()
    return batch
