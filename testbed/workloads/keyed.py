"""Random choices as a function of what they are for, instead of how many came before.

A generator seeded by (seed, purpose, worker, step) needs no state in a checkpoint, and no role can disturb
the draws of another.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What the numbers are for. The values are part of the key: never renumber them."""

    SPLIT = 1  # which worker owns which training image
    ORDER = 2  # a worker's order of images in one epoch
    AUGMENT = 3  # crops, mirrors, brightness and contrast of one batch
    STAND_IN = 4  # the generated data sets
    DROPOUT = 5  # what a model with dropout drops in one batch
    MIX = 6  # the order of test images that are stored class by class
    TEXT = 7  # the generated text
    CALIBRATION = 8  # the training examples that normalisations take their statistics from


def generator(seed: int, purpose: Purpose, *indices: int) -> np.random.Generator:
    """Return a fresh generator for one key; all numbers must be non-negative integers."""
    words = [seed, int(purpose), *indices]
    # What `default_rng` makes of the words, too; of an array it is made in half the time.
    key = np.array(words, np.uint32) if max(words) < 2**32 else words
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
