"""The largest magnitudes of every chunk of a layer, their values in 2 bits.

As SparseLoCo sends them (arXiv 2508.15706; the quantizer is that of its authors' code, with ranges of six standard
deviations): of the values that a layer keeps, with mean m and standard deviation s, a value x is in the bin
round((x - m) / (1.5 s)) + 2, cut to 0 .. 3, and stands for the mean of all the values that are in it.

The format is that of `testbed.codecs.sparse`, with chunks in the place of layers. The values take two buffers:

1. means: four float32 for each layer, one for each bin, 0 for one that is empty;
2. bins: 2 bits for each value, the first in the lowest bits of a byte; bits past the last value are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

import numpy as np
import torch

from testbed.codecs import backend, kernels
from testbed.codecs.base import Buffers, Key, VectorCodec, WireBuffers, wire_array
from testbed.codecs.buffers import Allocate
from testbed.codecs.registry import codec
from testbed.codecs.sparse import Floats, Kept, SparseCodec, finite
from testbed.errors import CodecError
from testbed.layout import Layer, Layout

SIGMAS = 6.0  # that the bins span


def chunks(layout: Layout, size_of: Callable[[Layer], int]) -> Layout:
    """A layout with runs of at most so many elements of each layer in the place of its layers."""
    return Layout(
        tuple(
            Layer(layer.name, (min(size, layer.size - start),), layer.offset + start, False)
            for layer in layout
            for size in [size_of(layer)]
            for start in range(0, layer.size, size)
        )
    )


class Bins:
    """Values as one of a few means of their layer's.

    Parameters
    ----------
    chunks : how many chunks each layer has
    bits : of a value, for 2^bits means a layer: 2, 4 or 8

    Attributes
    ----------
    count : of a layer's bins
    """

    names: tuple[str, ...] = ("means", "bins")

    def __init__(self, chunks: Sequence[int], bits: int = 2) -> None:
        self._ends = np.cumsum(np.array(chunks, np.int64))
        self.chunks, self.bits, self.count = list(chunks), bits, 2**bits

    def sizes(self, values: int) -> list[int]:
        """Bytes of the buffers of so many values."""
        return [4 * self.count * self._ends.size, -(-values * self.bits // 8)]

    def encode(self, values: np.ndarray, counts: np.ndarray, allocate: Allocate = np.empty) -> Buffers:
        means = allocate(self.count * self._ends.size, np.float32)
        packed = allocate(self.sizes(values.size)[1], np.uint8)
        kernels.bins.pack(values, self._stops(counts), SIGMAS, self.bits, means, packed, allocate)
        return [means, packed]

    def decode(self, buffers: WireBuffers, counts: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
        values = allocate(int(counts.sum()), np.float32)
        self.write(buffers, counts, values)
        return values

    def write(self, buffers: WireBuffers, counts: np.ndarray, values: np.ndarray) -> None:
        """`decode` into an array of as many values."""
        means = wire_array(buffers[0], np.float32, self.count * self._ends.size, "means")
        packed = wire_array(buffers[1], np.uint8, self.sizes(values.size)[1], "bins")
        kernels.codes.look_up(packed, values, means, self._stops(counts), self.bits)

    def _stops(self, counts: np.ndarray) -> np.ndarray:
        """Where each layer's values end, of so many of each chunk."""
        return np.concatenate([[0], np.cumsum(counts)])[self._ends]


class ChunkedTopK(VectorCodec):
    """The largest magnitudes of every chunk.

    Parameters
    ----------
    layout : the model
    kept : the fraction of a chunk's elements, rounded up, above 0 up to 1; a whole number: so many, or all
    size : elements of a chunk, of all layers or by layer; a layer's last one has what is left
    exact : values in float32 instead of 2 bits

    Attributes
    ----------
    sparse : makes messages of what is kept
    runs : where chunks of one length lie in the vector one after the other: start, stop, length
    """

    costs_as = "chunked top-k"

    def __init__(
        self, layout: Layout, kept: float | int, size: int | Callable[[Layer], int] = 4096, exact: bool = False
    ) -> None:
        if not (kept >= 1 if isinstance(kept, int) else 0 < kept <= 1):
            raise CodecError(
                f"what is kept of a chunk is a part above 0 and at most 1, or a number of elements, not {kept}"
            )
        super().__init__(layout)
        self.kept = kept
        size_of = size if callable(size) else lambda layer: size
        values = Floats() if exact else Bins([-(-layer.size // size_of(layer)) for layer in layout])
        self.sparse = SparseCodec(chunks(layout, size_of), values)
        self.decode, self.add = self.sparse.decode, self.sparse.add
        self.runs = [run for layer in layout for run in _runs(layer, size_of(layer))]

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """See `Codec.encode`; no random numbers are drawn."""
        x = finite(vector, self.layout)
        found = [self._largest(vector.detach()[start:stop].reshape(-1, size), start) for start, stop, size in self.runs]
        places = torch.cat([torch.empty(0, dtype=torch.int64, device=vector.device), *found]).cpu().numpy()
        places = places.astype(np.uint32)
        return self.sparse.pack(Kept(places, backend.of(x).sparse.gather(x, places, self._pool.take)))

    def wanted(self, size: int) -> int:
        """How many elements a chunk of this size keeps of those that are not zero."""
        return min(size, self.kept if isinstance(self.kept, int) else ceil(round(self.kept * size, 6)))

    def _largest(self, rows: torch.Tensor, start: int) -> torch.Tensor:
        """The increasing places of the largest of each row, of a run of chunks that begins at `start`.

        Zeros are never among them; of equal magnitudes those that come first are taken.
        """
        wanted = self.wanted(rows.shape[1])
        magnitudes = rows.abs()
        least = magnitudes.topk(wanted, sorted=False).values.amin(1, keepdim=True)
        found = (magnitudes >= least) & (magnitudes > 0)
        if bool((found.sum(1) > wanted).any()):
            above = magnitudes > least
            found &= above | ((found & ~above).cumsum(1) <= wanted - above.sum(1, keepdim=True))
        return found.flatten().nonzero().flatten() + start


def _runs(layer: Layer, size: int) -> Iterator[tuple[int, int, int]]:
    """See `ChunkedTopK.runs`, here those of a layer."""
    cut = layer.size - layer.size % size
    if cut:
        yield layer.offset, layer.offset + cut, size
    if cut < layer.size:
        yield layer.offset + cut, layer.end, layer.size - cut


codec("chunked top-k 1.6 %")(lambda layout: ChunkedTopK(layout, 1 / 64))
