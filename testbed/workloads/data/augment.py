"""From uint8 images to what a model takes: distortion for training, the middle for tests, standardization for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads.data.base import size_text
from testbed.workloads.data.images import Size


@dataclass(frozen=True)
class Distortion:
    """What happens to a training image besides the random crop to the model's size.

    Attributes
    ----------
    pad
        Black pixels added on each side of an image that the model takes whole, so that there is something to crop.
    mirror
        Whether every other image is mirrored.
    max_brightness
        Of 255; up to this much is added to or taken from every pixel.
    contrast
        Least and largest factor on the distance from the channel's mean.
    """

    pad: int = 0
    mirror: bool = False
    max_brightness: float = 0.0
    contrast: tuple[float, float] = (1.0, 1.0)


NONE = Distortion()
CROP_AND_MIRROR = Distortion(pad=4, mirror=True)  # He et al. 2016, section 4.2; at 224 x 224 AlexNet's, section 4.1
TUTORIAL = Distortion(pad=4, mirror=True, max_brightness=63.0, contrast=(0.2, 1.8))  # TensorFlow's cifar10_input.py


def distort(images: Tensor, size: Size, random: np.random.Generator, distortion: Distortion = TUTORIAL) -> Tensor:
    """Augment a training batch, each image with its own draws.

    Parameters
    ----------
    images
        uint8 [n, channels, height, width], on any device.
    size
        (channels, height, width) of the result.
    random
        A keyed generator; the same one gives the same batch on every device.
    distortion
        The data set's.

    Returns
    -------
    Tensor
        float32 [n, *size] with zero mean and unit deviation per image.
    """

    def to_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(images.device)

    count, per_image = len(images), (-1, 1, 1, 1)
    x = _cropped(images, size, random, distortion.pad)
    if distortion.mirror:
        mirrored = random.random(count) < 0.5
        x = torch.where(to_device(mirrored).view(per_image), x.flip(3), x)
    if limit := distortion.max_brightness:
        brightness = random.uniform(-limit, limit, count).astype(np.float32)
        x = x + to_device(brightness).view(per_image)
    if distortion.contrast != NONE.contrast:
        contrast = random.uniform(*distortion.contrast, count).astype(np.float32)
        mean = x.mean((2, 3), keepdim=True)
        x = (x - mean).mul_(to_device(contrast).view(per_image)).add_(mean)
    return standardize(x)


def _cropped(images: Tensor, size: Size, random: np.random.Generator, pad: int) -> Tensor:
    """Cut each image at a random place: float32 [n, *size]."""
    if not any(_slack(images, size)):
        images = functional.pad(images, (pad, pad, pad, pad))
    count = len(images)
    rows, columns = _slack(images, size)
    corners = random.integers(0, [[rows + 1], [columns + 1]], (2, count))
    top, left = torch.from_numpy(corners).to(images.device)
    windows = images.unfold(2, size[1], 1).unfold(3, size[2], 1)  # a view: [n, channels, top, left, height, width]
    return windows[torch.arange(count, device=images.device), :, top, left].float()


def center(images: Tensor, size: Size) -> Tensor:
    """Crop uint8 [n, channels, height, width] images in the middle and standardize: float32 [n, *size]."""
    rows, columns = _slack(images, size)
    top, left = rows // 2, columns // 2
    return standardize(images[:, :, top : top + size[1], left : left + size[2]].float())


def standardize(images: Tensor) -> Tensor:
    """Give each image zero mean and unit deviation; the deviation is taken as 1/sqrt(pixels) at least."""
    deviation, mean = torch.std_mean(images, (1, 2, 3), correction=0, keepdim=True)
    return (images - mean).div_(deviation.clamp_(min=1 / sqrt(images[0].numel())))


def check_crop(images: Sequence[int], size: Sequence[int]) -> None:
    """Raise InputError unless images of one size can be cropped to the other."""
    if not fits(images, size):
        raise InputError(
            f"the data set's images are {size_text(images)}, the model takes {size_text(size)}; "
            "choose another of the two"
        )


def fits(images: Sequence[int], size: Sequence[int]) -> bool:
    """Whether images of one size can be cropped to the other."""
    same = len(images) == len(size) and images[0] == size[0]
    return same and all(has >= takes for has, takes in zip(images, size, strict=True))


def _slack(images: Tensor, size: Size) -> tuple[int, int]:
    """Return how many rows and columns a crop may leave out."""
    check_crop(images.shape[1:], size)
    return images.shape[2] - size[1], images.shape[3] - size[2]
