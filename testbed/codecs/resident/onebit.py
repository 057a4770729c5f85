"""1-bit messages that stay on the device: `testbed.codecs.onebit`, in one pass over the columns of all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.onebit import OneBit
from testbed.codecs.resident.base import ElementPlanes, Resident, extended
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass
from testbed.gpu.moves import upload

WIDTH = 32  # values that are added up together: short columns are filled up to a multiple of it


class OneBitResident(Resident):
    """Signs and column means; that these are finite is looked at later.

    Means are sums in another order than the CPU's, and differ by less than 1e-6 of the values; signs are the same.
    """

    codec: OneBit

    def __init__(self, codec: OneBit, device: torch.device) -> None:
        columns = list(codec.columns())
        lengths = [length for _, length in columns]
        super().__init__(codec, device, [layer for layer, _ in columns for _ in range(2)])  # a mean of each sign
        size = self.layout.size
        self._sums = Sums(lengths, device)
        self._lengths = self.moved(np.array(lengths, np.int64))
        self._planes = ElementPlanes(lengths, 1, device)
        self._first = self.moved(np.repeat(2 * np.arange(len(lengths)), lengths))  # each element's mean, without a sign
        self._plainly, self._fed_back = Pass(self._packed, size), Pass(self._packed_with_feedback, size)
        self._unpack = Pass(lambda means, signs: [self._values(means, signs)], size)

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """Code without feedback; see `OneBit.encode`."""
        means, signs = self._plainly(self.checked(vector))
        self.doubts.note(means.abs())
        return [means, signs]

    def encode_with_feedback(self, vector: Tensor, residual: Tensor, key: Key | None = None) -> list[Tensor]:
        """Encode vector + residual; `residual` [layout.size], on the device, becomes what the message leaves of it.

        Where the sum is not finite the residual is changed, too: the error is told later.
        """
        means, signs, left = self._fed_back(self.checked(vector), self.checked(residual))
        self.doubts.note(means.abs())
        residual.copy_(left)
        return [means, signs]

    def _packed(self, x: Tensor) -> list[Tensor]:
        packed = self._planes.pack(torch.signbit(x).to(torch.uint8))
        values = self._sums.gathered(x)
        parts = values.clamp(min=0), values.clamp(max=0), torch.signbit(values)
        plus, minus, negatives = self._sums.of([part.sum(1, dtype=torch.float64) for part in parts])
        counts = torch.stack([self._lengths - negatives, negatives], 1).clamp(min=1)
        # An empty sum may be a zero with a sign, which the kernels' is not.
        return [(torch.stack([plus, minus], 1) / counts + 0.0).float().view(-1), packed]

    def _packed_with_feedback(self, x: Tensor, rest: Tensor) -> list[Tensor]:
        wanted = rest + x
        means, signs = self._packed(wanted)
        return [means, signs, wanted - means.index_select(0, self._first + torch.signbit(wanted))]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        if len(buffers) != 2:
            raise CodecError(f"a message of 2 buffers (means, signs) came as {len(buffers)}")
        (vector,) = self._unpack(*buffers)
        return vector

    def _values(self, means: Tensor, signs: Tensor) -> Tensor:
        return means.index_select(0, self._first + self._planes.unpack(signs))


class Sums:
    """Sums over columns of any lengths, in as many operations as the longest has digits to the base `WIDTH`.

    `WIDTH` neighbours are added up first, then as many of these sums, until a column has one: nothing depends on the
    order in which a device happens to add, and little is filled up.

    Parameters
    ----------
    lengths : of the columns, which lie one after the other
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._levels: list[Tensor] = []
        counts = np.array(lengths, np.int64)
        while not self._levels or counts.max(initial=1) > 1:
            runs = runs_of(counts)
            self._levels.append(upload(filled(counts, runs), device))
            counts = runs

    def gathered(self, x: Tensor) -> Tensor:
        """The elements of all columns as rows [runs, WIDTH], zeros behind each column's end."""
        return extended(x).index_select(0, self._levels[0]).view(-1, WIDTH)

    def of(self, rows: Sequence[Tensor]) -> Tensor:
        """Sums over columns (float64 [how many, columns]) of sums over the rows of `gathered`."""
        sums = torch.stack(list(rows))
        for places in self._levels[1:]:
            filled = torch.cat([sums, sums.new_zeros(len(sums), 1)], 1)
            sums = filled.index_select(1, places).view(len(sums), -1, WIDTH).sum(2)
        return sums


def runs_of(counts: np.ndarray) -> np.ndarray:
    """How many runs of `WIDTH` each column takes; one of nothing, whose sum is zero."""
    return np.maximum(-(-counts // WIDTH), 1)


def filled(counts: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """Which of all numbers stands where in so many runs of `WIDTH` for each column; the one past the last for none."""
    room, total = runs * WIDTH, int(counts.sum())
    number = np.arange(int(room.sum())) - np.repeat(np.cumsum(room) - room, room)
    start = np.repeat(np.cumsum(counts) - counts, room)
    return np.where(number < np.repeat(counts, room), start + number, total)
