"""Ternary gradients (TernGrad) and ternary weights (WeightGrad), in the format of `testbed.codecs.trits`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import Buffers, Elements, Key, beside, elements
from testbed.codecs.kernels.ternary import DRAW_RANGE
from testbed.codecs.kernels.vectors import INFINITY_BITS
from testbed.codecs.registry import codec
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

_TINY_SCALE = 2.0**-90  # below, 2^31 / scale could overflow: the layer is multiplied by 2^60 (exactly) first
_ENLARGE = 2.0**60
_ROUNDS = 20  # of the loss-aware alternation at most; it stops by itself when b no longer changes


@dataclass(frozen=True)
class Limits:
    """What one worker's vector says of the scales.

    Parameters
    ----------
    clip : float32 [ternary layers], the largest magnitude of each clipped layer, max|clip(g)|
    scales : float32 [scales of a message], the worker's own: `clip`, or its maximum where one scale serves all
    """

    clip: np.ndarray
    scales: np.ndarray


@codec("ternary")
class Ternary(TritFormat):
    """TernGrad's stochastic ternary gradients (terngrad, sections 3.1 and 3.3).

    Each layer (weights and biases apart) is clipped to c*sigma (eq. 21); with s = max|clip(g)| it becomes
    s * sign(g) * b, P(b = 1) = |clip(g)| / s (eq. 1 to 3): unbiased for the clipped gradient. Sigma is the standard
    deviation about the layer's mean. A layer whose values are all equal has sigma 0 and would be clipped to nothing:
    it is left unclipped.

    Parameters
    ----------
    layout : the model
    clip : c, in standard deviations; None: no clipping
    float_last : keep the last layer in float32
    layerwise : one scale per layer; otherwise a single one, the maximum over the (still layer-wise clipped) layers
    """

    costs_as = "ternary"

    def __init__(
        self, layout: Layout, clip: float | None = 2.5, float_last: bool = True, layerwise: bool = True
    ) -> None:
        if clip is not None and not clip > 0:
            raise CodecError(f"clip is a positive number of standard deviations or None, not {clip}")
        super().__init__(layout, lambda layer: float_last and layer.last, one_scale=not layerwise)
        self.clip = clip

    def limits(self, vector: torch.Tensor) -> Limits:
        """Measure the vector [layout.size] in one pass; CodecError names the layer that holds NaN or infinity."""
        x = elements(vector, self.layout)
        on = backend.of(x)
        clip = np.array([_limit(on, layer, x[layer.slice], self.clip) for layer in self.ternary], np.float32)
        return Limits(clip, clip.max(keepdims=True) if self.one_scale and clip.size else clip)

    def encode(
        self,
        vector: torch.Tensor,
        key: Key,
        scales: np.ndarray | None = None,
        limits: Limits | None = None,
    ) -> Buffers:
        """Clip, ternarize at random and pack.

        Parameters
        ----------
        vector : float32 [layout.size]
        key : names the random numbers
        scales : float32 [scale_count], shared by all workers: the maximum of their `Limits.scales` (eq. 4); by
            default the vector's own
        limits : of this very vector, when already measured

        Raises
        ------
        CodecError : NaN or infinity in a layer, or a shared scale that is below the layer's own or not finite
        """
        x = elements(vector, self.layout)
        own = limits if limits is not None else self.limits(vector)
        shared = own.scales if scales is None else self._shared(scales, own)
        on, buffers = backend.of(x), self.buffers(shared.copy(), x)
        for position, (layer, run) in enumerate(zip(self.ternary, self.runs, strict=True)):
            scale = self.scale_of(shared, position)
            drawn = key.layer(self.indexes[position])
            _pack(on, x[layer.slice], buffers[2][run], scale, own.clip[position], np.uint32(drawn))
        return buffers

    def _shared(self, scales: np.ndarray, own: Limits) -> np.ndarray:
        shared = np.asarray(scales, np.float32)
        if shared.shape != (self.scale_count,):
            raise CodecError(f"{self.scale_count} shared scales expected, found {shared.shape}")
        self.check_scales(shared)
        below = shared < own.scales
        if below.any():
            position = int(below.argmax())
            raise CodecError(
                f"{self.scale_name(position)}: the shared scale {shared[position]} is below "
                f"this worker's own {own.scales[position]}; share the maximum over the workers"
            )
        return shared


def _limit(on: ModuleType, layer: Layer, x: Elements, clip: float | None) -> np.float32:
    """max|clip(g)| of one layer."""
    total, squares, largest = on.vectors.moments(x)
    if largest >= INFINITY_BITS:
        raise NotFinite.of(f"layer {layer.name}")
    top = np.uint32(largest).view(np.float32)
    if clip is None or top == 0:
        return top
    mean_square, mean = squares / len(x), total / len(x)
    variance = mean_square - mean * mean
    if variance < 0.01 * mean_square:  # rounding could tell: measure again in float64
        mean, mean_square = (part / len(x) for part in on.vectors.moments_wide(x))
        variance = mean_square - mean * mean
        if variance <= 1e-12 * mean_square:  # nothing but rounding is left of it
            return top
    return np.float32(min(clip * math.sqrt(variance), float(top)))


def _pack(on: ModuleType, x: Elements, trits: np.ndarray, scale: np.float32, clip: np.float32, key: np.uint32) -> None:
    """Ternarize one layer clipped to +-clip (<= scale) into its run."""
    if scale == 0:
        trits[:] = 0
        return
    if scale < _TINY_SCALE:
        x, scale, clip = x * _ENLARGE, scale * _ENLARGE, clip * _ENLARGE
    inverse = np.float32(DRAW_RANGE / float(scale))
    on.ternary.pack(x, trits, inverse, clip * inverse, bool(clip < scale), key)  # |x| >= scale succeeds anyway


LOSS_AWARE = "threshold ternary, loss-aware"  # its row where there is an importance


@codec("threshold ternary")
class ThresholdTernary(TritFormat):
    """Deterministic ternary: alpha * sign(w) where |w| > Delta, else 0 (weightgrad, section 4 and Appendix A eq. 4).

    Plain: Delta = 0.7 * mean|w|, alpha the mean of the kept magnitudes. Loss-aware, when second moments are known:
    alpha and b minimise sum(importance * (w - alpha*b)^2) by turns, each exact given the other
    (alpha = sum(importance*|w|) / sum(importance) over the kept, b keeps |w| > alpha / 2), from the plain b.

    Parameters
    ----------
    layout : the model
    float_biases : keep biases (and other vectors) in float32
    float_last : keep the last layer in float32
    """

    costs_as = "threshold ternary"

    def __init__(self, layout: Layout, float_biases: bool = True, float_last: bool = True) -> None:
        super().__init__(layout, lambda layer: (float_biases and layer.bias) or (float_last and layer.last))

    def encode(self, vector: torch.Tensor, key: Key | None = None, importance: torch.Tensor | None = None) -> Buffers:
        """Ternarize and pack; no random numbers are drawn.

        Parameters
        ----------
        vector : float32 [layout.size]
        importance : float32 [layout.size], not negative: the square root of the optimizer's second moments; where
            it is zero for all kept elements of a layer, the layer is coded plainly

        Raises
        ------
        CodecError : NaN or infinity in a layer of either, or a negative importance
        """
        x = elements(vector, self.layout)
        weight = None if importance is None else beside(importance.contiguous(), vector, self.layout)
        on, buffers = backend.of(x), self.buffers(np.zeros(self.scale_count, np.float32), x)
        for position, (layer, run) in enumerate(zip(self.ternary, self.runs, strict=True)):
            values = x[layer.slice]
            alpha, threshold = _plain(on, layer, values)
            if weight is not None:
                alpha, threshold = _loss_aware(on, layer, values, weight[layer.slice], alpha, threshold)
            buffers[0][position] = alpha
            on.ternary.pack_signs(values, buffers[2][run], threshold)
        return buffers

    def quantize(self, vector: torch.Tensor, importance: torch.Tensor | None = None) -> torch.Tensor:
        """What a receiver of the encoded vector would decode, as a fresh vector [layout.size]."""
        return self.decode(self.encode(vector, importance=importance), vector.new_empty(self.layout.size))


def _plain(on: ModuleType, layer: Layer, x: Elements) -> tuple[np.float32, np.float32]:
    """(alpha, Delta) of one layer: 0.7 times the mean magnitude, and the mean of what is above it."""
    total, largest = on.ternary.magnitude(x)
    if largest >= INFINITY_BITS:
        raise NotFinite.of(f"layer {layer.name}")
    threshold = np.float32(0.7 * total / max(len(x), 1))
    count, kept = on.ternary.kept(x, threshold)
    return np.float32(kept / max(count, 1)), threshold


def _loss_aware(
    on: ModuleType, layer: Layer, x: Elements, weight: Elements, alpha: np.float32, threshold: np.float32
) -> tuple[np.float32, np.float32]:
    """(alpha, threshold) that the alternation reaches from the plain ones."""
    if len(weight) and not 0 <= float(weight.min()) <= float(weight.max()) < np.inf:  # NaN is both where there is one
        raise CodecError(f"layer {layer.name}: an importance is finite and at least 0")
    count, total, mass = on.ternary.kept_weighted(x, weight, threshold)
    for _ in range(_ROUNDS):
        if mass == 0:
            break
        alpha = np.float32(total / mass)
        following = on.ternary.kept_weighted(x, weight, alpha / 2)
        if following[0] == count:  # the kept sets of two thresholds are nested: equal in size, they are the same
            break
        threshold, (count, total, mass) = alpha / 2, following
    return alpha, threshold
