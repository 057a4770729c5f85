"""Values as means of the bins they are in, on the device: `testbed.codecs.statistical`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.chunked import SIGMAS, Bins
from testbed.codecs.resident.base import Measures, Resident, inverse_of
from testbed.codecs.resident.onebit import Sums, filled, runs_of
from testbed.codecs.resident.rice import BYTE
from testbed.codecs.statistical import Statistical
from testbed.gpu.graphs import Pass
from testbed.gpu.moves import upload


class Cells:
    """See `testbed.codecs.chunked.Bins`, here of columns of values that lie one after the other.

    Means are sums in another order than the CPU's, and differ by less than 1e-6 of the values; bins are the same but
    for a value that rounding alone keeps on one side of an edge.

    Parameters
    ----------
    codec : on the CPU
    lengths : of the columns, as long as they can be
    """

    def __init__(self, codec: Bins, lengths: Sequence[int], device: torch.device) -> None:
        self.count, self.per_byte = codec.count, BYTE // codec.bits
        self._sums, counts = Sums(lengths, device), np.array(lengths, np.int64)
        runs = runs_of(counts)
        self._owner = upload(np.repeat(np.arange(counts.size), runs), device)  # each run's column
        self._places = upload(inverse_of(filled(counts, runs), int(counts.sum())), device)  # each value's, among runs
        self._shifts = upload(np.arange(0, BYTE, codec.bits, dtype=np.uint8), device)

    def measured(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The means (float32 [columns * bins]) and each value's bin (uint8), of values where `real` says so.

        Each bin takes a pass over all values: nothing depends on the order in which a device happens to add.
        """
        x, real = self._sums.gathered(x).double(), self._sums.gathered(real)
        x = torch.where(real, x, 0.0)
        total, kept = self._totals(x, real)
        centred = x - self._each(total / kept.clamp(min=1))
        (squares,) = self._totals(torch.where(real, centred * centred, 0.0))
        deviations = (squares / (kept - 1).clamp(min=1)).sqrt()
        widths = torch.where(deviations > 0, SIGMAS / self.count * deviations, 1.0)
        bins = (centred / self._each(widths)).round() + self.count // 2  # halves to even, as numpy does
        bins = bins.nan_to_num().clamp(0, self.count - 1).to(torch.uint8)  # what is no number is told later
        return self._means(x, real, bins), bins.view(-1).index_select(0, self._places)

    def _means(self, x: Tensor, real: Tensor, bins: Tensor) -> Tensor:
        sums, members = [], []
        for each in range(self.count):
            here = real & (bins == each)
            sums.append(torch.where(here, x, 0.0).sum(1))
            members.append(here.sum(1, dtype=torch.float64))
        totals, counts = self._sums.of([*sums, *members]).chunk(2)
        means = totals / counts.clamp(min=1) + 0.0  # the sum of nothing may be a zero with a sign
        return means.float().T.reshape(-1)

    def _totals(self, *rows: Tensor) -> Tensor:
        """Sums over columns (float64 [how many, columns]) of values in runs."""
        return self._sums.of([each.sum(1, dtype=torch.float64) for each in rows])

    def _each(self, of_columns: Tensor) -> Tensor:
        return of_columns.index_select(0, self._owner).view(-1, 1)

    def packed(self, bins: Tensor) -> Tensor:
        """Bins (uint8, a multiple of `per_byte`) in bytes, the first in the lowest bits."""
        return (bins.view(-1, self.per_byte) << self._shifts).sum(1, dtype=torch.uint8)

    def unpacked(self, packed: Tensor) -> Tensor:
        """The inverse of `packed`."""
        return ((packed.view(-1, 1) >> self._shifts) & (self.count - 1)).view(-1)


class StatisticalResident(Resident):
    """Means of bins, of each layer or of each row of a matrix."""

    codec: Statistical

    def __init__(self, codec: Statistical, device: torch.device) -> None:
        layers = list(codec.layout)
        super().__init__(codec, device, layers)
        size, lengths = self.layout.size, codec.counts.tolist()
        self._cells = Cells(codec.bins, lengths, device)
        self._measures = Measures(layers, size, device)
        self._all = torch.ones(size, dtype=torch.bool, device=device)
        self._filling = torch.zeros(-size % self._cells.per_byte, dtype=torch.uint8, device=device)
        self._first = self.moved(self._cells.count * np.repeat(np.arange(len(lengths)), lengths))  # each element's mean
        self._pack, self._unpack = (Pass(work, size) for work in (self._packed, self._unpacked))

    def encode(self, vector: Tensor, key: Key | None = None) -> list[Tensor]:
        """See `Statistical.encode`."""
        tops, *buffers = self._pack(self.checked(vector))
        self.doubts.note(tops)
        return buffers

    def _packed(self, x: Tensor) -> list[Tensor]:
        tops = self._measures.tops(x)
        means, bins = self._cells.measured(x, self._all)
        return [tops, means, self._cells.packed(torch.cat([bins, self._filling]))]

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        (vector,) = self._unpack(*buffers)
        return vector

    def _unpacked(self, means: Tensor, packed: Tensor) -> list[Tensor]:
        return [means.index_select(0, self._first + self._cells.unpacked(packed)[: self.layout.size])]
