"""From uint8 images to what a model takes: distortion for training, the middle for tests, standardization for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads.data.base import size_text
from testbed.workloads.data.images import Size

Values = TypeVar("Values")
Moved = TypeVar("Moved")


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

    device = images.device
    draws = drawn(images.shape[1:], len(images), size, random, distortion)
    return distorted(images, size, draws.mapped(lambda values: torch.from_numpy(values).to(device)), distortion)


@dataclass(frozen=True)
class Draws(Generic[Values]):
    """What is drawn for a batch of n images, as arrays or on a device; None for what a distortion does without.

    Attributes
    ----------
    corners
        int64 [2, n], the top rows and the left columns of the crops.
    mirrored
        bool [n]
    brightness, contrast
        float32 [n]
    """

    corners: Values
    mirrored: Values | None
    brightness: Values | None
    contrast: Values | None

    @property
    def others(self) -> tuple[Values | None, Values | None, Values | None]:
        """All but the corners."""
        return self.mirrored, self.brightness, self.contrast

    def used_by(self, distortion: Distortion) -> Draws[Values]:
        """Without what a distortion does without."""
        bright, contrasted = distortion.max_brightness, distortion.contrast != NONE.contrast
        return Draws(
            self.corners,
            self.mirrored if distortion.mirror else None,
            self.brightness if bright else None,
            self.contrast if contrasted else None,
        )

    def mapped(self, move: Callable[[Values], Moved]) -> Draws[Moved]:
        """The same elsewhere, in the order in which it is used."""
        return Draws(move(self.corners), *(None if values is None else move(values) for values in self.others))


def drawn(
    images: Sequence[int], count: int, size: Size, random: np.random.Generator, distortion: Distortion
) -> Draws[np.ndarray]:
    """Draw for `count` images of (channels, height, width) `images` what `distorted` does with them."""
    rows, columns = _corners(tuple(images), size, distortion)
    high = rows if rows == columns else [[rows], [columns]]  # the same numbers, and sooner
    corners = random.integers(0, high, (2, count))
    mirrored = random.random(count) < 0.5 if distortion.mirror else None
    limit, brightness, contrast = distortion.max_brightness, None, None
    if limit:
        brightness = random.uniform(-limit, limit, count).astype(np.float32)
    if distortion.contrast != NONE.contrast:
        contrast = random.uniform(*distortion.contrast, count).astype(np.float32)
    return Draws(corners, mirrored, brightness, contrast)


def distorted(images: Tensor, size: Size, draws: Draws[Tensor], distortion: Distortion) -> Tensor:
    """Do with uint8 images what has been drawn for them: float32 [n, *size], standardized."""
    per_image = (-1, 1, 1, 1)
    if pad := _padding(images.shape[1:], size, distortion):
        images = functional.pad(images, (pad, pad, pad, pad))
    top, left = draws.corners
    windows = images.unfold(2, size[1], 1).unfold(3, size[2], 1)  # a view: [n, channels, top, left, height, width]
    x = windows[torch.arange(len(images), device=images.device), :, top, left].float()
    if draws.mirrored is not None:
        x = torch.where(draws.mirrored.view(per_image), x.flip(3), x)
    if draws.brightness is not None:
        x = x + draws.brightness.view(per_image)
    if draws.contrast is not None:
        mean = x.mean((2, 3), keepdim=True)
        x = (x - mean).mul_(draws.contrast.view(per_image)).add_(mean)
    return standardize(x)


@lru_cache
def _corners(images: tuple[int, ...], size: Size, distortion: Distortion) -> tuple[int, int]:
    """How many rows and columns a crop can begin at."""
    pad = _padding(images, size, distortion)
    rows, columns = _slack(images, size)
    return rows + 2 * pad + 1, columns + 2 * pad + 1


def _padding(images: Sequence[int], size: Size, distortion: Distortion) -> int:
    """Black pixels on each side: only images that the model takes whole have any."""
    return 0 if any(_slack(images, size)) else distortion.pad


def center(images: Tensor, size: Size) -> Tensor:
    """Crop uint8 [n, channels, height, width] images in the middle and standardize: float32 [n, *size]."""
    rows, columns = _slack(images.shape[1:], size)
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


def _slack(images: Sequence[int], size: Size) -> tuple[int, int]:
    """Return how many rows and columns a crop of images of one size may leave out."""
    check_crop(images, size)
    return images[1] - size[1], images[2] - size[2]
