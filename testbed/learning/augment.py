"""From uint8 images to what a model takes, as in TensorFlow's CIFAR-10 tutorial (cifar10_input.py).

Training: random crop, mirror, brightness, contrast, standardization. Test: center crop, standardization.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor

from testbed.errors import InputError

MAX_BRIGHTNESS = 63.0  # of 255, added to or taken from every pixel
CONTRAST = (0.2, 1.8)  # factor on the distance from the channel's mean


def distort(images: Tensor, size: tuple[int, int, int], random: np.random.Generator) -> Tensor:
    """Augment a training batch, each image with its own draws.

    Parameters
    ----------
    images
        uint8 [n, channels, height, width], on any device.
    size
        (channels, height, width) of the result.
    random
        A keyed generator; the same one gives the same batch on every device.

    Returns
    -------
    Tensor
        float32 [n, *size] with zero mean and unit deviation per image.
    """
    count = len(images)
    rows, columns = _slack(images, size)
    top, left = random.integers(0, [[rows + 1], [columns + 1]], (2, count))
    mirrored = random.random(count) < 0.5
    brightness = random.uniform(-MAX_BRIGHTNESS, MAX_BRIGHTNESS, count).astype(np.float32)
    contrast = random.uniform(*CONTRAST, count).astype(np.float32)

    def to_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(images.device)

    windows = images.unfold(2, size[1], 1).unfold(3, size[2], 1)  # a view: [n, channels, top, left, height, width]
    x = windows[torch.arange(count, device=images.device), :, to_device(top), to_device(left)].float()
    per_image = (-1, 1, 1, 1)
    x = torch.where(to_device(mirrored).view(per_image), x.flip(3), x)
    x += to_device(brightness).view(per_image)
    mean = x.mean((2, 3), keepdim=True)
    return standardize((x - mean).mul_(to_device(contrast).view(per_image)).add_(mean))


def center(images: Tensor, size: tuple[int, int, int]) -> Tensor:
    """Crop uint8 [n, channels, height, width] images in the middle and standardize: float32 [n, *size]."""
    rows, columns = _slack(images, size)
    top, left = rows // 2, columns // 2
    return standardize(images[:, :, top : top + size[1], left : left + size[2]].float())


def standardize(images: Tensor) -> Tensor:
    """Give each image zero mean and unit deviation; the deviation is taken as 1/sqrt(pixels) at least."""
    deviation, mean = torch.std_mean(images, (1, 2, 3), correction=0, keepdim=True)
    return (images - mean).div_(deviation.clamp_(min=1 / sqrt(images[0].numel())))


def _slack(images: Tensor, size: tuple[int, int, int]) -> tuple[int, int]:
    """Return how many rows and columns a crop may leave out."""
    channels, height, width = images.shape[1:]
    if channels != size[0] or height < size[1] or width < size[2]:
        given, wanted = (f"{c}x{h}x{w}" for c, h, w in (images.shape[1:], size))
        raise InputError(f"the data set's images are {given}, the model takes {wanted}; choose another of the two")
    return height - size[1], width - size[2]
