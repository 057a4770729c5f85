"""Augmentation: shapes, statistics, and each distortion seen on its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads.data import augment
from testbed.workloads.data.augment import Distortion

SIZE = (3, 24, 24)
RECORDED = [0.93769, 0.39859, -1.55102, -1.42488, 0.06834, 0.51447, -0.72241, 1.58314]


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_every_image_is_standardized(images: torch.Tensor) -> None:
    for x in (augment.distort(images, SIZE, random()), augment.center(images, SIZE)):
        assert x.shape == (16, *SIZE)
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.mean((1, 2, 3)), torch.zeros(16), atol=1e-5, rtol=0)
        torch.testing.assert_close(x.std((1, 2, 3), correction=0), torch.ones(16), atol=1e-4, rtol=0)


def test_center_crop_is_the_middle(images: torch.Tensor) -> None:
    expected = augment.standardize(images[:, :, 4:28, 4:28].float())
    assert torch.equal(augment.center(images, SIZE), expected)


def test_a_flat_image_becomes_zero_not_nan() -> None:
    assert not augment.center(torch.full((1, 3, 32, 32), 7, dtype=torch.uint8), SIZE).any()


def test_deviation_has_tensorflows_floor() -> None:
    image = torch.zeros(1, 3, 2, 2)
    image[0, 0, 0, 0] = 0.01  # deviation 0.0028, far below 1/sqrt(12)
    expected = (image - image.mean()) * 12**0.5
    torch.testing.assert_close(augment.standardize(image), expected)


def test_the_generator_decides(images: torch.Tensor) -> None:
    first = augment.distort(images, SIZE, random(1))
    assert torch.equal(first, augment.distort(images, SIZE, random(1)))
    assert not torch.equal(first, augment.distort(images, SIZE, random(2)))


def test_a_distorted_image_is_a_crop_maybe_mirrored(images: torch.Tensor) -> None:
    """Without contrast changes an image is one of the 162 mirrored or plain crops, standardized."""
    distorted = augment.distort(images, SIZE, random(), Distortion(mirror=True, max_brightness=63.0))
    found = set()
    for image, result in zip(images, distorted, strict=True):
        for top in range(9):
            for left in range(9):
                crop = image[None, :, top : top + 24, left : left + 24].float()
                for mirrored in (False, True):
                    candidate = augment.standardize(crop.flip(3) if mirrored else crop)[0]
                    if torch.allclose(candidate, result, atol=1e-4):
                        found.add((int(image[0, 0, 0]), top, left, mirrored))
    assert len(found) == len(images)  # each image matches exactly one crop
    assert {mirrored for *_, mirrored in found} == {False, True}
    assert len({(top, left) for _, top, left, _ in found}) > 8


def test_contrast_scales_about_each_channels_mean() -> None:
    """With no room to crop and a mirror-symmetric image, only the contrast is left."""
    column = torch.arange(12, dtype=torch.uint8)
    half = column.expand(24, 12)
    image = torch.stack([torch.cat([half, half.flip(1)], 1) + offset for offset in (0, 40, 90)])[None]
    mean = image.float().mean((2, 3), keepdim=True)
    expected = augment.standardize((image.float() - mean) * 0.5 + mean)
    halved = Distortion(mirror=True, contrast=(0.5, 0.5))
    torch.testing.assert_close(augment.distort(image, SIZE, random(), halved), expected, atol=1e-5, rtol=1e-4)


def test_brightness_leaves_a_standardized_image_as_it_was(images: torch.Tensor) -> None:
    bright = augment.distort(images, SIZE, random(), Distortion(max_brightness=63.0))
    torch.testing.assert_close(augment.distort(images, SIZE, random(), Distortion()), bright, atol=1e-4, rtol=1e-4)


def test_without_distortion_only_the_crop_is_random(images: torch.Tensor) -> None:
    whole = images.shape[1:]
    assert torch.equal(augment.distort(images, whole, random(), augment.NONE), augment.center(images, whole))
    assert not torch.equal(augment.distort(images, SIZE, random(), augment.NONE), augment.center(images, SIZE))


def test_an_image_taken_whole_is_padded_to_have_something_to_crop(images: torch.Tensor) -> None:
    padded = functional.pad(images, (4, 4, 4, 4))
    crops = {
        (top, left): augment.standardize(padded[:, :, top : top + 32, left : left + 32].float())
        for top in range(9)
        for left in range(9)
    }
    moved = augment.distort(images, (3, 32, 32), random(), Distortion(pad=4))
    places = [
        next(place for place, crop in crops.items() if torch.equal(crop[i], image)) for i, image in enumerate(moved)
    ]
    assert len(set(places)) > 8


def test_padding_is_for_images_taken_whole(images: torch.Tensor) -> None:
    padded, plain = Distortion(pad=4), Distortion()
    assert torch.equal(augment.distort(images, SIZE, random(), padded), augment.distort(images, SIZE, random(), plain))


def test_the_tutorials_distortion_never_changes(images: torch.Tensor) -> None:
    """Results that were recorded rest on these draws and their order."""
    x = augment.distort(images, SIZE, random())
    assert x[:8, 1, 5, 7].tolist() == pytest.approx(RECORDED, abs=1e-5)


@pytest.mark.parametrize("transform", [augment.center, lambda x, size: augment.distort(x, size, random())])
def test_images_that_do_not_fit_the_model_are_refused(transform) -> None:
    with pytest.raises(InputError, match="images are 1x28x28, the model takes 3x24x24"):
        transform(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), SIZE)
