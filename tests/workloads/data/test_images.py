"""Image sets: the same images however they are stored, and in whatever order they are asked for."""

from __future__ import annotations

import numpy as np
import torch

from testbed.workloads.data.images import Enlarged, Images, Reordered, Split

WHOLE = np.arange(10 * 3 * 2 * 2, dtype=np.uint8).reshape(10, 3, 2, 2)
INDICES = np.array([9, 0, 3, 3, 2, 4])


def test_images_over_several_parts_are_one_array() -> None:
    images = Images([WHOLE[:3], WHOLE[3:4], WHOLE[4:]])
    assert images.shape == (10, 3, 2, 2)
    assert torch.equal(images.take(INDICES), torch.from_numpy(WHOLE[INDICES]))


def test_enlarging_repeats_pixels() -> None:
    enlarged = Enlarged(Images([WHOLE]), 3)
    assert (len(enlarged), enlarged.shape) == (10, (10, 3, 6, 6))
    taken = enlarged.take(INDICES)
    assert taken.shape[1:] == enlarged.shape[1:]
    for row in range(3):
        for column in range(3):
            assert torch.equal(taken[:, :, row::3, column::3], torch.from_numpy(WHOLE[INDICES]))


def test_reordering_keeps_what_the_order_names() -> None:
    order = np.array([5, 1, 7])
    reordered = Reordered(Images([WHOLE]), order)
    assert (len(reordered), reordered.shape) == (3, (3, 3, 2, 2))
    assert torch.equal(reordered.take(np.array([2, 0])), torch.from_numpy(WHOLE[[7, 5]]))


def test_mixing_keeps_labels_with_their_images_and_spreads_the_classes() -> None:
    labels = np.repeat(np.arange(10), 20)
    images = Images([labels.astype(np.uint8).reshape(-1, 1, 1, 1)])
    mixed = Split(images, labels).mixed()
    assert mixed.images.take(np.arange(200)).flatten().tolist() == mixed.labels.tolist()
    assert sorted(mixed.labels) == labels.tolist()
    assert len(set(mixed.labels[:30])) > 7
    assert np.array_equal(mixed.labels, Split(images, labels).mixed().labels)
