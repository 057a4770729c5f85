"""The message of a model's quantized factors: three buffers, numbers little-endian.

1. points: float32, what the quantizer of each signal needs, X and Delta of the first layer, then of the second, ...;
2. sizes: uint32, the bytes of each signal's run in the third buffer, in the same order;
3. runs: for each signal a byte, then its symbols, row by row, as `testbed.codecs.lossless.entropy` codes them. With
   the byte 0 these are one run of the symbols of all elements; with 1, two runs, the first one's bytes before it as a
   uint32: the symbols at whose place the next layer's X is not zero, then all others.

The second form is for what ReLU does: where a layer's output is cut to zero, the next layer's X and this one's Delta
are zero together (section 4), so that a run of its own says more of them; it is taken where it is the shorter. A bias
adds nothing: its gradient is that of a further input that is always 1 (eq. 10).

Factors on a GPU come down in one transfer, and all of this is done on the CPU. Entropy codes are made there anyway; and
quantizers are found in rounds that end when the data say so, which a GPU would have to be asked for at each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from testbed.codecs.base import Buffers, Key, WireBuffers, all_finite, expect, stretches, wire_array
from testbed.codecs.buffers import BufferPool
from testbed.codecs.kernels.compiled import warm_up
from testbed.codecs.lossless.entropy import pack_symbols, unpack_symbols
from testbed.errors import CodecError, NotFinite
from testbed.gpu.moves import download_all, upload_all
from testbed.layout import Factors, Layout

IN_ONE, BY_THE_NEXT = 0, 1
COUNT = 4  # bytes before the first of two runs


class Signal(NamedTuple):
    """One quantized matrix."""

    points: np.ndarray  # float32 [points a signal]
    symbols: np.ndarray  # uint8, row by row


class FactorCodec(ABC):
    """Codes the factors of a model's linear layers, from the layer nearest the input on.

    Parameters
    ----------
    layout : the model, whose linear layers are meant
    samples : L, rows of every factor

    Attributes
    ----------
    elements : of all factors together
    """

    buffers: ClassVar[int]  # in a message
    flops = 0.0  # of products that coding makes, beside what its row of `testbed.codecs.costs` says

    def __init__(self, layout: Layout, samples: int) -> None:
        warm_up()
        self.layers, self.samples = layout.linear, samples
        widths = [width for layer in self.layers for width in (layer.inputs, layer.outputs)]
        self._shapes = tuple((samples, width) for width in widths)
        self.elements = samples * sum(widths)
        self._pool = BufferPool()
        self._names = tuple(f"layer {layer.weight.name}, {kind}" for layer in self.layers for kind in ("X", "Delta"))

    @abstractmethod
    def encode(self, factors: Sequence[Factors], key: Key) -> Buffers:
        """Code the factors of all linear layers, which may be on a device.

        Raises
        ------
        CodecError : a factor has another shape, or holds NaN or infinity; names the layer
        """

    @abstractmethod
    def decode(self, buffers: WireBuffers, key: Key) -> list[Factors]:
        """The factors as received, on the CPU; CodecError names what is malformed.

        `key` is the one they were coded with.
        """

    def signals(self, factors: Sequence[Factors]) -> list[np.ndarray]:
        """X and Delta of the first layer, of the second, ..., checked; see `encode`."""
        parts = [part.detach() for pair in factors for part in pair]
        if len(parts) != len(self._shapes):
            raise CodecError(f"factors of {len(self.layers)} linear layers expected, found {len(parts) // 2}")
        for name, shape, part in zip(self._names, self._shapes, parts, strict=True):
            if part.shape != shape or part.dtype != torch.float32:
                raise CodecError(f"{name}: float32 {shape} expected, found {part.dtype} {tuple(part.shape)}")
        found = [part.contiguous().numpy() for part in download_all(parts)]
        for name, signal in zip(self._names, found, strict=True):
            self.require_finite(signal, name)
        return found

    def require_finite(self, signal: np.ndarray, name: str) -> None:
        """CodecError with `name` where a value is NaN or infinite."""
        if not all_finite(signal.reshape(-1)):
            raise NotFinite.of(name)

    def pairs(self, signals: Sequence[torch.Tensor]) -> list[Factors]:
        """The inverse of `signals`, for flat ones."""
        shaped = [signal.view(shape) for signal, shape in zip(signals, self._shapes, strict=True)]
        return list(zip(shaped[::2], shaped[1::2], strict=True))


class Unquantized(FactorCodec):
    """The factors in float32 as they are, in one buffer: ISGQ with its quantization turned off."""

    buffers = 1

    costs_as = "float32"

    def __init__(self, layout: Layout, samples: int) -> None:
        super().__init__(layout, samples)
        self._places = stretches(rows * width for rows, width in self._shapes)
        self._size = sum(rows * width for rows, width in self._shapes)

    def encode(self, factors: Sequence[Factors], key: Key) -> Buffers:
        values = self._pool.take(self._size, np.float32)
        for place, signal in zip(self._places, self.signals(factors), strict=True):
            values[place] = signal.reshape(-1)
        return [values]

    def decode(self, buffers: WireBuffers, key: Key) -> list[Factors]:
        expect(buffers, ["factors"])
        values = wire_array(buffers[0], np.float32, self._size, "factors")
        for name, place in zip(self._names, self._places, strict=True):
            self.require_finite(values[place], name)
        copy = self._pool.take(self._size, np.float32)
        copy[:] = values
        return self.pairs([torch.from_numpy(copy[place]) for place in self._places])


class Quantizer(FactorCodec):
    """The format of quantized factors; a subclass says what the symbols are.

    Parameters
    ----------
    points : float32 numbers in a message for each signal
    alphabet : a signal's symbols are below it
    zeros : whether symbol 0 stands for zero; otherwise no symbol does
    """

    buffers = 3

    def __init__(self, layout: Layout, samples: int, *, points: int, alphabet: int, zeros: bool) -> None:
        super().__init__(layout, samples)
        self._points, self._alphabet, self._zeros = points, alphabet, zeros

    @abstractmethod
    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        """Quantize the factors [L, n] and [L, m], all finite, of the linear layer of that number."""

    @abstractmethod
    def values(self, signal: int, quantized: Signal, key: Key) -> np.ndarray:
        """The float32 values, row by row, of the signal of that number (twice the layer's, and 1 for Delta)."""

    def encode(self, factors: Sequence[Factors], key: Key) -> Buffers:
        parts = self.signals(factors)
        signals = [
            signal
            for layer in range(len(self.layers))
            for signal in self.quantize(layer, parts[2 * layer], parts[2 * layer + 1], key)
        ]
        symbols = [signal.symbols for signal in signals]
        packed = [self._pack(number, symbols) for number in range(len(signals))]
        points = np.concatenate([signal.points for signal in signals] or [np.empty(0, np.float32)])
        sizes = np.array([1 + run.size for _, run in packed], "<u4")
        runs = self._pool.take(int(sizes.sum()))
        for place, (form, run) in zip(stretches(sizes.tolist()), packed, strict=True):
            runs[place.start], runs[place.start + 1 : place.stop] = form, run
        return [points, sizes, runs]

    def decode(self, buffers: WireBuffers, key: Key) -> list[Factors]:
        expect(buffers, ["points", "sizes", "runs"])
        count = len(self._shapes)
        points = wire_array(buffers[0], np.float32, count * self._points, "points").reshape(count, self._points)
        sizes = wire_array(buffers[1], np.uint32, count, "sizes").tolist()
        runs = wire_array(buffers[2], np.uint8, sum(sizes), "runs")
        for name, row in zip(self._names, points, strict=True):
            if not np.isfinite(row).all():
                raise CodecError(f"{name}: NaN or infinity among its points")
        places = stretches(sizes)
        symbols: list[np.ndarray] = [np.empty(0, np.uint8)] * count
        for number in (*range(0, count, 2), *range(1, count, 2)):  # a Delta may rest on the next layer's X
            symbols[number] = self._unpack(number, runs[places[number]], symbols)
        signals = map(Signal, points, symbols)
        return self.pairs([torch.from_numpy(self.values(k, signal, key)) for k, signal in enumerate(signals)])

    def _beside(self, number: int, symbols: Sequence[np.ndarray]) -> np.ndarray | None:
        """The next layer's X, if signal `number` is a Delta and of the same width as that, and zeros have a symbol."""
        following = number + 1
        if not self._zeros or number % 2 == 0 or following == len(self._shapes):
            return None
        return symbols[following] if self._shapes[number] == self._shapes[following] else None

    def _pack(self, number: int, symbols: Sequence[np.ndarray]) -> tuple[int, np.ndarray]:
        """The form of a signal's run, and what follows that."""
        one, beside = self._packed(number, symbols[number]), self._beside(number, symbols)
        if beside is None:
            return IN_ONE, one
        there, elsewhere = (self._packed(number, symbols[number][here]) for here in (beside != 0, beside == 0))
        if COUNT + there.size + elsewhere.size >= one.size:
            return IN_ONE, one
        count = np.array([there.size], "<u4").view(np.uint8)
        return BY_THE_NEXT, np.concatenate([count, there, elsewhere])

    def _packed(self, number: int, symbols: np.ndarray) -> np.ndarray:
        return pack_symbols(symbols, self._alphabet, self._names[number], self._pool.take)

    def _unpack(self, number: int, run: np.ndarray, symbols: Sequence[np.ndarray]) -> np.ndarray:
        (length, width), name = self._shapes[number], self._names[number]
        beside = self._beside(number, symbols)
        form = int(run[0]) if run.size else None
        if form == IN_ONE:
            return unpack_symbols(run[1:], length * width, self._alphabet, name, self._pool.take)
        if form != BY_THE_NEXT or beside is None:
            raise CodecError(f"{name}: a run of the unknown form {form}")
        if run.size < 1 + COUNT:
            raise CodecError(f"{name}: a run of {run.size} bytes does not say where its second half begins")
        cut = 1 + COUNT + int(run[1 : 1 + COUNT].view("<u4")[0])
        if cut > run.size:
            raise CodecError(f"{name}: the first of two runs ends beyond the {run.size} bytes that there are")
        found, there = self._pool.take(length * width), beside != 0
        count = int(np.count_nonzero(there))
        for here, part, size in (
            (there, run[1 + COUNT : cut], count),
            (~there, run[cut:], length * width - count),
        ):
            found[here] = unpack_symbols(part, size, self._alphabet, name, self._pool.take)
        return found


def multiply(layout: Layout, workers: Sequence[Sequence[Factors]], out: torch.Tensor) -> None:
    """Write the linear layers' mean gradient over all rows of all workers' factors into a vector [layout.size].

    The rows of all are put one below the other, so that each layer is a single product, Delta^T X / rows. It is made
    where `out` is, to which the factors go in one transfer.
    """
    places = [(number, part) for number in range(len(layout.linear)) for part in (0, 1)]
    stacked = [torch.cat([factors[number][part] for factors in workers]) for number, part in places]
    rows = upload_all(stacked, out.device)
    for layer, x, delta in zip(layout.linear, rows[::2], rows[1::2], strict=True):
        weight = out[layer.weight.slice].view(layer.weight.shape)
        torch.mm(delta.T, x, out=weight).div_(len(x))
        if layer.bias is not None:
            out[layer.bias.slice] = delta.mean(0)
