"""Quantized factors of linear layers' gradients (isgq: Abdi and Fekri, AAAI 2020).

In place of a layer's gradient Delta^T X / L its factors travel, the layer's input X [L, n] and the derivative Delta
[L, m] of the loss by its output, and who receives them multiplies. Three buffers, numbers little-endian:

1. points: float32, what the quantizer of each signal needs, X and Delta of the first layer, then of the second, ...;
2. sizes: uint32, the bytes of each signal's run in the third buffer, in the same order;
3. runs: for each signal a byte, then its symbols, row by row, as `testbed.codecs.entropy` codes them. With the byte 0
   these are the symbols of all elements; with 1, of those alone at whose place the next layer's X is not zero.

The second form is for what ReLU does: where a layer's output is cut to zero, the next layer's X and this one's Delta
are zero together (section 4). A bias adds nothing: its gradient is that of a further input that is always 1 (eq. 10).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from testbed.codecs import factor_kernels, kernels, lanes
from testbed.codecs.base import Buffers, Key, WireBuffers, expect, stretches, wire_array
from testbed.codecs.entropy import pack_symbols, unpack_symbols
from testbed.codecs.factor_points import Product, lloyd_max
from testbed.errors import CodecError
from testbed.layout import Factors, Layout

EVERYWHERE, WHERE_NEXT_IS_NOT_ZERO = 0, 1


class Signal(NamedTuple):
    """One quantized matrix."""

    points: np.ndarray  # float32 [points a signal]
    symbols: np.ndarray  # uint8, the matrix's shape


class FactorCodec(ABC):
    """Codes the factors of a model's linear layers, from the layer nearest the input on.

    Parameters
    ----------
    layout : the model, whose linear layers are meant
    samples : L, rows of every factor
    """

    buffers: ClassVar[int]  # in a message

    def __init__(self, layout: Layout, samples: int) -> None:
        lanes.warm_up()
        self.layers, self.samples = layout.linear, samples
        widths = [width for layer in self.layers for width in (layer.inputs, layer.outputs)]
        self._shapes = tuple((samples, width) for width in widths)
        self._names = tuple(f"layer {layer.weight.name}, {kind}" for layer in self.layers for kind in ("X", "Delta"))

    @abstractmethod
    def encode(self, factors: Sequence[Factors], key: Key) -> Buffers:
        """Code the factors of all linear layers.

        Raises
        ------
        CodecError : a factor has another shape, or holds NaN or infinity; names the layer
        """

    @abstractmethod
    def decode(self, buffers: WireBuffers, key: Key) -> list[Factors]:
        """The factors as received; `key` is the one they were coded with. CodecError names what is malformed."""

    def arrays(self, factors: Sequence[Factors]) -> list[np.ndarray]:
        """X and Delta of the first layer, of the second, ..., checked; see `encode`."""
        arrays = [part.detach().contiguous().numpy() for pair in factors for part in pair]
        if len(arrays) != len(self._shapes):
            raise CodecError(f"factors of {len(self.layers)} linear layers expected, found {len(arrays) // 2}")
        for name, shape, array in zip(self._names, self._shapes, arrays, strict=True):
            if array.shape != shape or array.dtype != np.float32:
                raise CodecError(f"{name}: float32 {shape} expected, found {array.dtype} {array.shape}")
            if kernels.largest_bits(array.reshape(-1)) >= kernels.INFINITY_BITS:
                raise CodecError(f"{name}: NaN or infinity among its values")
        return arrays


class Unquantized(FactorCodec):
    """The factors in float32 as they are, in one buffer: ISGQ with its quantization turned off."""

    buffers = 1

    def encode(self, factors: Sequence[Factors], key: Key) -> Buffers:
        return [np.concatenate([array.reshape(-1) for array in self.arrays(factors)] or [np.empty(0, np.float32)])]

    def decode(self, buffers: WireBuffers, key: Key) -> list[Factors]:
        expect(buffers, ["factors"])
        places = stretches(rows * width for rows, width in self._shapes)
        values = wire_array(buffers[0], np.float32, places[-1].stop if places else 0, "factors").copy()
        parts = [values[place].reshape(shape) for place, shape in zip(places, self._shapes, strict=True)]
        for name, part in zip(self._names, parts, strict=True):
            if not np.isfinite(part).all():
                raise CodecError(f"{name}: NaN or infinity among its values")
        return _pairs(parts)


class Quantizer(FactorCodec):
    """The format of quantized factors; a subclass says what the symbols are.

    Parameters
    ----------
    points : float32 numbers in a message for each signal
    alphabet : a signal's symbols are below it
    zero : the symbol that stands for zero, None where no symbol does
    """

    buffers = 3

    def __init__(self, layout: Layout, samples: int, *, points: int, alphabet: int, zero: int | None) -> None:
        super().__init__(layout, samples)
        self._points, self._alphabet, self._zero = points, alphabet, zero

    @abstractmethod
    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        """Quantize the factors, all finite, of the linear layer of that number."""

    @abstractmethod
    def values(self, signal: int, quantized: Signal, key: Key) -> np.ndarray:
        """The float32 values of the signal of that number (twice the layer's, and 1 for Delta)."""

    def encode(self, factors: Sequence[Factors], key: Key) -> Buffers:
        arrays = self.arrays(factors)
        signals = [
            signal
            for layer in range(len(self.layers))
            for signal in self.quantize(layer, arrays[2 * layer], arrays[2 * layer + 1], key)
        ]
        runs = [self._pack(number, signals) for number in range(len(signals))]
        points = np.concatenate([signal.points for signal in signals] or [np.empty(0, np.float32)])
        sizes = np.array([run.size for run in runs], "<u4")
        return [points, sizes, np.concatenate(runs or [np.empty(0, np.uint8)])]

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
        values = [self.values(k, Signal(points[k], symbols[k]), key) for k in range(count)]
        return _pairs(values)

    def _support(self, number: int, symbols: Sequence[np.ndarray]) -> np.ndarray | None:
        """Where the next layer's X is not zero, if signal `number` is a Delta and of the same width as that."""
        following = number + 1
        if self._zero is None or number % 2 == 0 or following == len(self._shapes):
            return None
        return symbols[following] != self._zero if self._shapes[number] == self._shapes[following] else None

    def _pack(self, number: int, signals: Sequence[Signal]) -> np.ndarray:
        symbols = signals[number].symbols
        support = self._support(number, [signal.symbols for signal in signals])
        form, chosen = EVERYWHERE, symbols.reshape(-1)
        if support is not None and (symbols[~support] == self._zero).all():
            form, chosen = WHERE_NEXT_IS_NOT_ZERO, symbols[support]
        packed = pack_symbols(chosen, self._alphabet, self._names[number])
        return np.concatenate([np.array([form], np.uint8), packed])

    def _unpack(self, number: int, run: np.ndarray, symbols: Sequence[np.ndarray]) -> np.ndarray:
        shape, name = self._shapes[number], self._names[number]
        support = self._support(number, symbols)
        form = int(run[0]) if run.size else None
        if form == EVERYWHERE:
            return unpack_symbols(run[1:], shape[0] * shape[1], self._alphabet, name).reshape(shape)
        if form != WHERE_NEXT_IS_NOT_ZERO or support is None:
            raise CodecError(f"{name}: a run of the unknown form {form}")
        found = np.full(shape, self._zero, np.uint8)
        found[support] = unpack_symbols(run[1:], int(np.count_nonzero(support)), self._alphabet, name)
        return found


class LloydMax(Quantizer):
    """Naive ISGQ: each signal by the quantizer that is best for itself (isgq, section 3; Lloyd 1982, Max 1960).

    A signal's zeros stay zeros, its other elements get one of K levels. Where a signal of one sign has enough zeros (at
    least a quarter of an even share: 1 in 4 K), as behind a ReLU, zero is one of its K levels ("the threshold is set
    to zero"); `zero_beside` keeps it beside them, which is more precise and costs a third to a half more.

    Parameters
    ----------
    layout : the model
    samples : L, rows of every factor
    levels : K, 2 to 16
    zero_beside : zero is never one of the K levels
    """

    def __init__(self, layout: Layout, samples: int, levels: int = 2, zero_beside: bool = False) -> None:
        if not 2 <= levels <= 16:
            raise CodecError(f"a quantizer of factors has 2 to 16 levels, not {levels}")
        super().__init__(layout, samples, points=levels, alphabet=levels + 1, zero=0)
        self.levels, self.zero_beside = levels, zero_beside

    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        return self._nearest(x), self._nearest(delta)

    def _nearest(self, x: np.ndarray) -> Signal:
        flat = x.reshape(-1)
        zeros = flat.size - np.count_nonzero(flat)
        one_sided = flat.size > 0 and (flat.min() >= 0 or flat.max() <= 0)
        shared = one_sided and not self.zero_beside and 4 * self.levels * zeros >= flat.size
        thresholds, points = lloyd_max(flat, self.levels - 1 if shared else self.levels)
        symbols = np.empty(flat.size, np.uint8)
        factor_kernels.classify(flat, thresholds, symbols)
        return Signal(np.append(points, np.zeros(self.levels - points.size, np.float32)), symbols.reshape(x.shape))

    def values(self, signal: int, quantized: Signal, key: Key) -> np.ndarray:
        return np.append(np.float32(0), quantized.points)[quantized.symbols]


class MinimumError(LloydMax):
    """MSE-ISGQ: the same bins, with the points that bring the product nearest the gradient (eq. 6, Algorithm 1).

    Parameters
    ----------
    layout, samples, levels, zero_beside : see `LloydMax`
    rounds : alternations of Algorithm 1; the paper makes 1 or 2
    bias_weight : lambda of eq. 6 in units of 1 / (elements of the layer's gradient)
    """

    def __init__(
        self,
        layout: Layout,
        samples: int,
        levels: int = 2,
        zero_beside: bool = False,
        rounds: int = 2,
        bias_weight: float = 1.0,
    ) -> None:
        super().__init__(layout, samples, levels, zero_beside)
        self.rounds, self.bias_weight = rounds, bias_weight

    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        inputs, backward = self._nearest(x), self._nearest(delta)
        x_size, delta_size = (float(np.abs(part).max(initial=0)) for part in (x, delta))
        if x_size == 0 or delta_size == 0:
            return inputs, backward
        one = 1 / x_size if self.layers[layer].bias is not None else 0.0
        product = Product(
            x / np.float32(x_size),
            delta / np.float32(delta_size),
            inputs.symbols,
            backward.symbols,
            self.levels,
            one,
            self.bias_weight,
        )
        alpha = inputs.points.astype(np.float64) / x_size
        for _ in range(self.rounds):
            beta = product.best_beta(alpha)
            alpha = product.best_alpha(beta)
        return Signal(_float32(alpha * x_size), inputs.symbols), Signal(_float32(beta * delta_size), backward.symbols)


class Dithered(Quantizer):
    """Dithered ISGQ: q = round(x / scale + u), received as scale * (q - u) (eq. 7); unbiased (Theorem 2).

    The scale is the largest magnitude over K, q is within -K .. K, and u is uniform over (-1/2, 1/2). It comes from the
    key: both sides draw it, it does not travel. The error is uniform and independent of the signal, zeros included.

    Parameters
    ----------
    layout : the model
    samples : L, rows of every factor
    levels : K, 1 to 127
    """

    def __init__(self, layout: Layout, samples: int, levels: int = 1) -> None:
        if not 1 <= levels <= 127:
            raise CodecError(f"a dithered quantizer has 1 to 127 levels on each side of zero, not {levels}")
        super().__init__(layout, samples, points=1, alphabet=2 * levels + 1, zero=None)
        self.levels = levels

    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        return self._dithered(2 * layer, x, key), self._dithered(2 * layer + 1, delta, key)

    def _dithered(self, signal: int, x: np.ndarray, key: Key) -> Signal:
        largest = np.abs(x).max(initial=0)
        symbols = np.full(x.size, self.levels, np.uint8)
        if largest > 0:
            scale, drawn = float(largest) / self.levels, np.uint32(key.layer(signal))
            factor_kernels.dither(x.reshape(-1), symbols, scale, self.levels, drawn)
        return Signal(np.array([largest], np.float32), symbols.reshape(x.shape))

    def values(self, signal: int, quantized: Signal, key: Key) -> np.ndarray:
        scale, drawn = float(quantized.points[0]) / self.levels, np.uint32(key.layer(signal))
        out = np.empty(quantized.symbols.size, np.float32)
        factor_kernels.undither(quantized.symbols.reshape(-1), out, scale, self.levels, drawn)
        return out.reshape(quantized.symbols.shape)


def _float32(points: np.ndarray) -> np.ndarray:
    largest = np.finfo(np.float32).max
    return points.clip(-largest, largest).astype(np.float32)


def _pairs(parts: Sequence[np.ndarray]) -> list[Factors]:
    """(X, Delta) of each layer."""
    tensors = [torch.from_numpy(part) for part in parts]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def multiply(layout: Layout, workers: Sequence[Sequence[Factors]], out: torch.Tensor) -> None:
    """Write the linear layers' mean gradient over all rows of all workers' factors into a vector [layout.size].

    The rows of all are put one below the other, so that each layer is a single product, Delta^T X / rows.
    """
    for number, layer in enumerate(layout.linear):
        x, delta = (torch.cat([factors[number][part] for factors in workers]) for part in (0, 1))
        weight = out[layer.weight.slice].view(layer.weight.shape)
        torch.mm(delta.T, x, out=weight).div_(len(x))
        if layer.bias is not None:
            out[layer.bias.slice] = delta.mean(0)
