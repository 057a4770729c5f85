"""1-bit messages, signs and the mean of each: `testbed.codecs.kernels.onebit` with torch."""

from __future__ import annotations

import numpy as np
import torch

from testbed.codecs.device import planar
from testbed.codecs.device.planar import joined, parted, rows_of
from testbed.codecs.device.vectors import host, moved
from testbed.codecs.kernels.planar import PLANES


def pack(x: torch.Tensor, rest: torch.Tensor | None, signs: np.ndarray, means: np.ndarray, length: int) -> None:
    """Pack the sign bits of a layer's columns of this length and find their means; see `kernels.onebit.pack_chunk`.

    Where there is a rest, x + rest is packed, and the rest becomes what the means leave of it.
    """
    if rest is not None:
        rest += x
        x = rest
    packed, pairs = _pack(x, length)
    signs[:], means[:] = host(packed), host(pairs)
    if rest is not None:
        rest -= _values(packed, pairs, len(rest), length)


def unpack(signs: np.ndarray, means: np.ndarray, y: torch.Tensor, length: int) -> None:
    """Write a layer: the mean of its column and sign for each element."""
    y.copy_(_values(moved(signs, y), moved(means, y), len(y), length))


def _pack(x: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8, a run of ceil(length / 8) bytes a column; float32 [columns, 2], flat)."""
    packed, means = [x.new_empty(0, dtype=torch.uint8)], [x.new_empty(0)]
    for columns in rows_of(x, length):
        negative = torch.signbit(columns)
        count = negative.sum(1)
        plus = torch.where(negative, 0.0, columns).sum(1, dtype=torch.float64) / (columns.shape[1] - count).clamp(min=1)
        minus = torch.where(negative, columns, 0.0).sum(1, dtype=torch.float64) / count.clamp(min=1)
        means.append(torch.stack([plus, minus], 1).float().view(-1))
        packed.append(planar.pack(negative, PLANES, 1, lambda blocks, first: joined(blocks)).view(-1))
    return torch.cat(packed), torch.cat(means)


def _values(signs: torch.Tensor, means: torch.Tensor, size: int, length: int) -> torch.Tensor:
    """The mean of its column and sign for each element: float32 [size]."""
    pairs, values = means.view(-1, 2), [means.new_empty(0)]
    for count, wide in ((size // length, length), (1, size % length)):  # columns, and the shorter last
        if count and wide:
            used = count * -(-wide // PLANES)
            bits = planar.unpack(signs[:used].view(count, -1), wide, PLANES, 1, lambda planes, first: parted(planes))
            values.append(torch.where(bits > 0, pairs[:count, 1:], pairs[:count, :1]).view(-1))
            signs, pairs = signs[used:], pairs[count:]
    return torch.cat(values)
