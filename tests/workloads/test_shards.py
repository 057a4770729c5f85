"""Shards partition the images; batches walk through a shard once an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.workloads.shards import batch_indices, dirichlet, iid

WORKERS = st.lists(st.integers(1, 5), min_size=1, max_size=5)
LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def flat(shards: list[list[np.ndarray]]) -> np.ndarray:
    return np.concatenate([shard for region in shards for shard in region])


@given(workers=WORKERS, images=st.integers(25, 300), seed=st.integers(0, 2**32))
def test_iid_is_a_partition_into_equal_shares(workers: list[int], images: int, seed: int) -> None:
    shards = iid(images, workers, seed)
    assert [len(region) for region in shards] == workers
    assert sorted(flat(shards)) == list(range(images))
    sizes = [len(shard) for region in shards for shard in region]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=50, deadline=None)
@given(
    workers=WORKERS,
    classes=st.lists(st.integers(0, 9), min_size=25, max_size=200),
    seed=st.integers(0, 2**32),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e3]),
)
def test_dirichlet_is_a_partition_with_work_for_everyone(
    workers: list[int], classes: list[int], seed: int, alpha: float
) -> None:
    shards = dirichlet(np.array(classes), workers, seed, alpha)
    assert [len(region) for region in shards] == workers
    assert sorted(flat(shards)) == list(range(len(classes)))
    assert all(len(shard) for region in shards for shard in region)


def largest_share(shards: list[list[np.ndarray]]) -> float:
    """Mean over classes of the largest fraction of a class that one region holds."""
    counts = np.array([np.bincount(LABELS[np.concatenate(region)], minlength=10) for region in shards])
    return float((counts.max(0) / counts.sum(0)).mean())


def test_dirichlet_skews_regions_as_alpha_says() -> None:
    skews = [largest_share(dirichlet(LABELS, [4, 4, 4, 4], 0, alpha)) for alpha in (0.05, 1.0, 1000.0)]
    assert skews[0] > 0.8
    assert skews[0] > skews[1] > skews[2]
    assert skews[2] == pytest.approx(0.25, abs=0.03)


def test_dirichlet_is_iid_among_the_workers_of_a_region() -> None:
    first, second = dirichlet(LABELS, [2, 2], 1, 0.1)[0]
    assert abs(len(first) - len(second)) <= 1
    shares = [np.bincount(LABELS[shard], minlength=10) / len(shard) for shard in (first, second)]
    assert np.abs(shares[0] - shares[1]).max() < 0.1


def test_regions_with_more_workers_get_more_images() -> None:
    large, small = dirichlet(LABELS, [4, 1], 0, 1000.0)
    assert sum(map(len, large)) / sum(map(len, small)) == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    "split", [lambda seed: iid(100, [2, 2], seed), lambda seed: dirichlet(LABELS, [2, 2], seed, 1)]
)
def test_the_seed_decides(split) -> None:
    assert np.array_equal(flat(split(5)), flat(split(5)))
    assert not np.array_equal(flat(split(5)), flat(split(6)))


def test_more_workers_than_images_is_refused() -> None:
    with pytest.raises(InputError, match="8 workers cannot share 7"):
        iid(7, [4, 4], 0)


@given(size=st.integers(1, 50), batch_size=st.integers(1, 60), epochs=st.integers(1, 3))
def test_each_epoch_covers_the_shard_exactly_once(size: int, batch_size: int, epochs: int) -> None:
    shard = np.arange(size) * 3 + 1
    steps = -(-epochs * size // batch_size)
    seen = np.concatenate([batch_indices(shard, 0, 0, step, batch_size) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(shard)


def test_a_batch_depends_on_seed_worker_and_step_alone() -> None:
    shard = np.arange(1000)
    batch = batch_indices(shard, 1, 2, 3, 16)
    assert np.array_equal(batch, batch_indices(shard, 1, 2, 3, 16))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(batch, batch_indices(shard, *other, 16))


def test_epochs_differ_in_order() -> None:
    shard = np.arange(64)
    assert not np.array_equal(batch_indices(shard, 0, 0, 0, 64), batch_indices(shard, 0, 0, 1, 64))
