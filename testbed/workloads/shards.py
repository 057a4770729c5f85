"""Which training examples a worker owns, and which of them are in its batch at a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError
from testbed.workloads.keyed import Purpose, generator

Indices = NDArray[np.int64]


def iid(examples: int, workers: Sequence[int], seed: int) -> list[list[Indices]]:
    """Deal all examples out at random, the same number to every worker (give or take one).

    Parameters
    ----------
    examples
        Number of training examples.
    workers
        Number of workers of each region.
    seed
        The experiment's seed.

    Returns
    -------
    list of list of ndarray
        `shards[region][worker]`: ascending indices; each of `range(examples)` is in exactly one of them.

    Raises
    ------
    InputError
        There are more workers than examples.
    """
    _check(examples, workers)
    order = generator(seed, Purpose.SPLIT).permutation(examples)
    parts = iter(np.array_split(order, sum(workers)))
    return [[np.sort(next(parts)) for _ in range(count)] for count in workers]


def dirichlet(labels: NDArray[np.integer], workers: Sequence[int], seed: int, alpha: float) -> list[list[Indices]]:
    """Skew the labels over the regions; inside a region, deal out at random.

    Each class is divided among the regions in proportions drawn from a Dirichlet distribution whose parameters
    are `alpha` times the region's share of the workers times the number of regions (Hsu et al. 2019,
    "Measuring the Effects of Non-Identical Data Distribution"; class by class as in Yurochkin et al. 2019).
    A small `alpha` gives each region a few classes, a large one tends to IID. The regions' shards differ in
    size too.

    Parameters and result as in `iid`; `labels` are the classes of all training examples.

    Raises
    ------
    InputError
        There are more workers than examples.
    """
    _check(len(labels), workers)
    random = generator(seed, Purpose.SPLIT)
    share = np.asarray(workers) / sum(workers)
    regions: list[list[Indices]] = [[] for _ in workers]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        proportions = random.dirichlet(alpha * len(workers) * share)
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(int)
        for region, part in zip(regions, np.split(members, cuts), strict=True):
            region.append(part)
    owned = [random.permutation(np.concatenate(parts)) for parts in regions]
    _fill(owned, workers)
    return [
        [np.sort(part) for part in np.array_split(indices, count)]
        for indices, count in zip(owned, workers, strict=True)
    ]


def _fill(owned: list[Indices], workers: Sequence[int]) -> None:
    """Give each region at least one example per worker, from the region that has most to spare."""
    for region, count in enumerate(workers):
        while (missing := count - len(owned[region])) > 0:
            donor = max(range(len(owned)), key=lambda other: len(owned[other]) - workers[other])
            taken = min(missing, len(owned[donor]) - workers[donor])
            owned[region] = np.concatenate([owned[region], owned[donor][-taken:]])
            owned[donor] = owned[donor][:-taken]


def _check(examples: int, workers: Sequence[int]) -> None:
    if examples < sum(workers):
        raise InputError(f"{sum(workers)} workers cannot share {examples} training examples; use fewer workers")


def batch_indices(shard: Indices, seed: int, worker: int, step: int, batch_size: int) -> Indices:
    """Return the training examples of one worker's batch, a function of its arguments alone.

    The worker walks through its shard in a new random order every epoch; a batch may span two epochs.

    Parameters
    ----------
    shard
        The worker's examples, at least one.
    seed
        The experiment's seed.
    worker
        The worker's number among all workers of all regions.
    step
        From 0.
    batch_size
        Examples in this worker's batch.
    """
    epoch, place = divmod(step * batch_size, len(shard))
    if place + batch_size <= len(shard):  # most batches are of one epoch
        return shard[_order(seed, worker, epoch, len(shard))[place : place + batch_size]]
    positions = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, places = np.divmod(positions, len(shard))
    batch = np.empty(batch_size, np.int64)
    for epoch in range(epochs[0], epochs[-1] + 1):
        batch[epochs == epoch] = shard[_order(seed, worker, epoch, len(shard))[places[epochs == epoch]]]
    return batch


@lru_cache(maxsize=256)  # of so many workers an epoch's order is drawn once, and not for each batch
def _order(seed: int, worker: int, epoch: int, size: int) -> Indices:
    return generator(seed, Purpose.ORDER, worker, epoch).permutation(size)
