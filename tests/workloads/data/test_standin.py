"""Stand-ins: the size and the classes of the real set, the same images everywhere, kept where they can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.workloads.data import cifar, standin
from testbed.workloads.data.base import DATASETS
from testbed.workloads.data.records import Format
from testbed.workloads.data.standin import StandIn

RECORDED = {  # bytes of the first records of the first batch
    0: [6, 127, 141, 129, 146, 107],
    1: [9, 138, 167, 138, 151, 153],
    2: [4, 118, 106, 138, 134, 126],
}


SMALL = StandIn("small", Format("Small", (3, 8, 10), classes=300, label_bytes=2), batches=2, images=50, enlarged=2)


IMAGES = ("cifar10", "mnist", "tiny-imagenet-32", "imagenet", "synthetic")


@pytest.mark.parametrize("name", IMAGES)
def test_a_stand_in_is_declared_with_the_real_sets_size_and_classes(name: str) -> None:
    spec = DATASETS[name]
    channels, height, width = spec.source.stand_in.format.image_size
    factor = spec.source.stand_in.enlarged
    assert (channels, height * factor, width * factor) == spec.input
    assert spec.source.stand_in.format.classes == spec.outputs
    assert spec.outputs == {"tiny-imagenet-32": 200, "imagenet": 1000}.get(name, 10)


def test_a_stand_in_has_the_size_and_the_classes_it_declares(tmp_path: Path) -> None:
    train, test, classes = SMALL.content(tmp_path)
    assert train.images.shape == test.images.shape == (50, 3, 16, 20)
    assert 255 < train.labels.max() < classes == 300
    assert not np.array_equal(train.labels, test.labels)


def test_it_is_the_same_with_and_without_its_cache(tmp_path: Path) -> None:
    everything = np.arange(50)
    generated = SMALL.content(tmp_path / "data").train
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["stand-in-1-small"]
    cached = SMALL.content(tmp_path / "data").train
    fresh = SMALL.content(Path("/proc/no-such-folder")).train
    for other in (cached, fresh):
        assert torch.equal(generated.images.take(everything), other.images.take(everything))
        assert np.array_equal(generated.labels, other.labels)


def test_cifars_images_never_change() -> None:
    """Results that were recorded rest on them; a pixel may be rounded otherwise by another Fourier transform."""
    (batch,) = standin.generate(batches=1, images=100, form=cifar.FORMAT)
    for place, recorded in RECORDED.items():
        assert batch[place, :6].tolist() == pytest.approx(recorded, abs=1)


def test_batches_are_distinct_and_balanced() -> None:
    first, second = standin.generate(batches=2, images=500, form=cifar.FORMAT)
    assert not np.array_equal(first, second)
    assert np.bincount(first[:, 0], minlength=10).min() > 25
    assert 30 < first[:, 1:].std() < 60
