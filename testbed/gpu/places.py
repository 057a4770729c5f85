"""Values written to places of a vector on a device in whatever order the device happens to, and places counted.

A device that is held to one order (`testbed.workloads.devices`) sorts the places first, and one thread counts how many
are the same (`indexing_backward_kernel_stride_1` in torch's Indexing.cu). Where a message does not fill its room all
the rest goes to one place, behind the end: hundreds of thousands. Here the order cannot be seen: no two values are for
the same place, or they are whole numbers that are added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def _in_any_order() -> Iterator[None]:
    held, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(held, warn_only=warns)


def scattered(vector: Tensor, places: Tensor, values: Tensor | float) -> Tensor:
    """A copy of `vector` [n] with `values` [k] at `places` (int64 [k]).

    Only the vector's last place, which stands for none, may come twice; what is there then nobody may look at.
    """
    with _in_any_order():
        return vector.scatter(0, places, values)


def add_whole(vector: Tensor, places: Tensor, numbers: Tensor) -> None:
    """Add whole `numbers` [k] to those of `vector` [n] at `places` (int64 [k]), few of which may be the same."""
    with _in_any_order():
        vector.index_add_(0, places, numbers)


def running(numbers: Tensor) -> Tensor:
    """Running sums (int64) of whole `numbers` [..., n] along the last dimension.

    A device counts along one long row by all of its cores, and along each of a few rows by a single one: 1.8 ms for a
    million numbers on an H100. So rows are counted through, one after the other, and what came before is taken off.
    """
    through = numbers.reshape(-1).cumsum(0).view(numbers.shape)
    if numbers.numel() == numbers.shape[-1]:
        return through
    ends = through[..., -1].reshape(-1)
    before = torch.cat([ends.new_zeros(1), ends[:-1]]).view(*numbers.shape[:-1], 1)
    return through - before
