"""What the symbols of quantized factors are: the nearest of a signal's own points, or a dithered grid."""

from __future__ import annotations

import numpy as np

from testbed.codecs.base import Key
from testbed.codecs.factors.format import Quantizer, Signal
from testbed.codecs.factors.points import Product, lloyd_max, lloyd_max_with_zero
from testbed.codecs.kernels import factors as kernels
from testbed.codecs.kernels.vectors import largest_bits
from testbed.errors import CodecError
from testbed.layout import Layout


class LloydMax(Quantizer):
    """Naive ISGQ: each signal by the quantizer that is best for itself (isgq, section 3; Lloyd 1982, Max 1960).

    A signal's zeros stay zeros, its other elements get one of K levels. Where a signal of one sign has enough zeros (at
    least a quarter of an even share: 1 in 4 K), as behind a ReLU, zero is one of its K levels, and what is nearer to it
    than to the others becomes zero as well; `zero_beside` keeps it beside K others, which is more precise and costs a
    third to a half more.

    Parameters
    ----------
    layout : the model
    samples : L, rows of every factor
    levels : K, 2 to 16
    zero_beside : zero is never one of the K levels
    """

    costs_as = "factors, nearest point"

    def __init__(self, layout: Layout, samples: int, levels: int = 2, zero_beside: bool = False) -> None:
        if not 2 <= levels <= 16:
            raise CodecError(f"a quantizer of factors has 2 to 16 levels, not {levels}")
        super().__init__(layout, samples, points=levels, alphabet=levels + 1, zeros=True)
        self.levels, self.zero_beside = levels, zero_beside

    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        return self._nearest(x.reshape(-1)), self._nearest(delta.reshape(-1))

    def _nearest(self, x: np.ndarray) -> Signal:
        zeros = len(x) - np.count_nonzero(x)
        low, high = kernels.extremes(x) if len(x) else (-1.0, 1.0)
        one_sided = low >= 0 or high <= 0
        if one_sided and not self.zero_beside and 4 * self.levels * zeros >= len(x):
            magnitudes = x if low >= 0 else -x
            thresholds, points = lloyd_max_with_zero(magnitudes, self.levels)
            symbols = kernels.lowered(kernels.classify(magnitudes, thresholds, self._pool.take))
            points = points if low >= 0 else -points
        else:
            thresholds, points = lloyd_max(x, self.levels)
            symbols = kernels.classify(x, thresholds, self._pool.take)
        return Signal(np.append(points, np.zeros(self.levels - points.size, np.float32)), symbols)

    def values(self, signal: int, quantized: Signal, key: Key) -> np.ndarray:
        points = np.append(np.float32(0), quantized.points)
        return kernels.points_of(quantized.symbols, points, self._pool.take)


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
        rows = (levels + 1) * samples
        self.flops = 2.0 * rows**2 * sum(width for _, width in self._shapes)  # the Gram products of `Product`

    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        inputs, backward = super().quantize(layer, x, delta, key)
        x_size, delta_size = float(_largest(x)), float(_largest(delta))
        if x_size == 0 or delta_size == 0:
            return inputs, backward
        one = 1 / x_size if self.layers[layer].bias is not None else 0.0
        product = Product(
            x,
            delta,
            inputs.symbols.reshape(x.shape),
            backward.symbols.reshape(delta.shape),
            self.levels,
            one,
            self.bias_weight,
            (x_size, delta_size),
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

    costs_as = "factors, dithered"

    def __init__(self, layout: Layout, samples: int, levels: int = 1) -> None:
        if not 1 <= levels <= 127:
            raise CodecError(f"a dithered quantizer has 1 to 127 levels on each side of zero, not {levels}")
        super().__init__(layout, samples, points=1, alphabet=2 * levels + 1, zeros=False)
        self.levels = levels

    def quantize(self, layer: int, x: np.ndarray, delta: np.ndarray, key: Key) -> tuple[Signal, Signal]:
        return self._dithered(2 * layer, x, key), self._dithered(2 * layer + 1, delta, key)

    def _dithered(self, signal: int, x: np.ndarray, key: Key) -> Signal:
        largest = _largest(x)
        scale = float(largest) / self.levels or 1.0  # of zeros alone any makes bin 0
        drawn = np.uint32(key.layer(signal))
        symbols = kernels.dither(x.reshape(-1), scale, self.levels, drawn, self._pool.take)
        return Signal(np.array([largest], np.float32), symbols)

    def values(self, signal: int, quantized: Signal, key: Key) -> np.ndarray:
        scale, drawn = float(quantized.points[0]) / self.levels, np.uint32(key.layer(signal))
        return kernels.undither(quantized.symbols, scale, self.levels, drawn, self._pool.take)


def _largest(x: np.ndarray) -> np.float32:
    """The largest magnitude, 0 of nothing."""
    return np.uint32(largest_bits(x.reshape(-1))).view(np.float32)


def _float32(points: np.ndarray) -> np.ndarray:
    largest = np.finfo(np.float32).max
    return points.clip(-largest, largest).astype(np.float32)
