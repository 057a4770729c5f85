"""Where the quantizers of two factors put their values (isgq, section 3 and Algorithm 1).

A quantizer has K levels: an element that is not zero belongs to one of K bins and becomes that bin's value. Zeros
stay zeros. A signal has some ten passes over it, and behind a ReLU every other element is a zero at random, which a
processor cannot foresee: so they go over what is left without the zeros, in a seventh of the time.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import torch

from testbed.codecs.kernels import factors as kernels

COLUMNS = 2048  # of a signal that are multiplied at a time
_ROUNDS = 30  # of Lloyd's alternation at most; it stops by itself when no element changes its bin


def lloyd_max(x: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """The quantizer of least squared error for the elements of x that are not zero (Lloyd 1982, Max 1960).

    It starts from the quantiles of the normal distribution that has their mean and deviation, and by turns takes
    each bin's mean as its value and the middle between two values as their threshold.

    Parameters
    ----------
    x : float32 [n]
    levels : K

    Returns
    -------
    thresholds : float32 [K - 1], ascending
    points : float32 [K], the bins' means; 0 for a bin without elements
    """
    kept = kernels.nonzero(x)
    total, squares = kernels.sums(x)
    mean = total / max(kept.size, 1)
    deviation = max(squares / max(kept.size, 1) - mean * mean, 0.0) ** 0.5
    normal = NormalDist()
    thresholds = np.array([mean + deviation * normal.inv_cdf(k / levels) for k in range(1, levels)], np.float32)
    counts, means = _bins(kept, thresholds)
    for _ in range(_ROUNDS if levels > 1 else 0):
        middles = (means[1:] + means[:-1]) / 2
        used = (counts[1:] > 0) & (counts[:-1] > 0)
        following = np.maximum.accumulate(np.where(used, middles, thresholds).astype(np.float32))
        before, (counts, means) = counts, _bins(kept, following)
        thresholds = following
        if np.array_equal(before, counts):
            break
    return thresholds, means.astype(np.float32)


def lloyd_max_with_zero(magnitudes: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for a signal of one sign, with zero as one of its K levels: small elements become zero, too.

    Of a half-normal signal the error left is that of a normal one with 2 K - 1 levels: 0.190 of its square with
    {0, a} (Max 1960, table 1).

    Parameters
    ----------
    magnitudes : float32 [n], none below zero
    levels : K, zero included

    Returns
    -------
    thresholds : float32 [K - 1], ascending; what is not above the first of them becomes zero
    points : float32 [K - 1], of the levels beside zero; 0 for one without elements
    """
    _, points = lloyd_max(magnitudes, levels - 1)
    kept, thresholds = kernels.nonzero(magnitudes), _middles(points)
    counts, means = _bins(kept, thresholds)
    for _ in range(_ROUNDS):
        points = np.where(counts[1:] > 0, means[1:], points).astype(np.float32)
        thresholds = _middles(points)
        before, (counts, means) = counts, _bins(kept, thresholds)
        if np.array_equal(before, counts):
            break
    return thresholds, np.where(counts[1:] > 0, means[1:], points).astype(np.float32)


def _middles(points: np.ndarray) -> np.ndarray:
    """Half-way from zero to the first point, from it to the second, ..."""
    below = np.concatenate([[np.float32(0)], points[:-1]])
    return np.maximum.accumulate(below / 2 + points / 2).astype(
        np.float32
    )  # halved first: both may be near the largest


def _bins(kept: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many elements each bin has, and their means."""
    counts, sums = kernels.bin_sums(kept, thresholds)
    return counts, sums / np.maximum(counts, 1)


class Product:
    """||G - G~||^2 + weight * (sum of G - G~)^2 as a function of both factors' points (isgq, eq. 6).

    With G = Delta^T X and G~ = sum over k, l of a_k b_l B_l^T A_k, for the bins' indicators A_k, B_l, all that enters
    are inner products <B_l^T A_k, B_l'^T A_k'>, which are sums over the elements of (A_k A_k'^T) * (B_l B_l'^T): L x L
    matrices, however large the layer. Delta and X themselves count as further "bins" here, number 0, so G needs not
    be computed. A bias is the column that a 1 at the end of each row of X adds to G; its 1 is known exactly and is the
    last "bin" of X, of value 1.

    Parameters
    ----------
    x, delta : float32 [L, n], [L, m]
    x_bins, delta_bins : uint8, of the same shapes: 0 for a zero, else the number of the bin, from 1
    levels : K
    one : what the 1 at the end of a row is in x's unit; 0: the layer has no bias
    bias_weight : lambda of eq. 6 in units of 1 / (elements of G)
    units : x and delta are measured in these, e.g. in their largest magnitudes, so that no product is out of range
    """

    def __init__(
        self,
        x: np.ndarray,
        delta: np.ndarray,
        x_bins: np.ndarray,
        delta_bins: np.ndarray,
        levels: int,
        one: float,
        bias_weight: float,
        units: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        x_gram, x_sums = _gram(x, x_bins, levels, units[0])
        delta_gram, delta_sums = _gram(delta, delta_bins, levels, units[1])
        self.bias = one > 0
        if self.bias:
            x_gram, x_sums = _with_ones(x_gram, x_sums, one)
        width = x.shape[1] + self.bias
        # inner[k, l, k', l']: <B_l^T A_k, B_l'^T A_k'>, the bias term's square included.
        inner = _inner(x_gram, delta_gram)
        sums = x_sums @ delta_sums.T
        weight = bias_weight / (width * delta.shape[1])
        self.inner = inner + weight * sums[:, :, None, None] * sums

    def loss(self, alpha: np.ndarray, beta: np.ndarray) -> float:
        """The value at points alpha of X and beta of Delta, [K] each."""
        a, b = np.concatenate([[-1.0], self._full(alpha)]), np.concatenate([[1.0], beta])
        coefficients = a[:, None] * b
        coefficients[0, 1:] = coefficients[1:, 0] = 0
        return float(np.einsum("kl,klpq,pq", coefficients, self.inner, coefficients))

    def best_beta(self, alpha: np.ndarray) -> np.ndarray:
        """The points of Delta that minimise it when X's are `alpha`."""
        a = self._full(alpha)
        square = np.einsum("k,klpq,p->lq", a, self.inner[1:, 1:, 1:, 1:], a)
        return _solve(square, np.einsum("k,kl->l", a, self.inner[1:, 1:, 0, 0]))

    def best_alpha(self, beta: np.ndarray) -> np.ndarray:
        """The points of X that minimise it when Delta's are `beta`."""
        square = np.einsum("l,klpq,q->kp", beta, self.inner[1:, 1:, 1:, 1:], beta)
        linear = np.einsum("l,kl->k", beta, self.inner[1:, 1:, 0, 0])
        if self.bias:
            square, linear = square[:-1, :-1], linear[:-1] - square[:-1, -1]
        return _solve(square, linear)

    def _full(self, alpha: np.ndarray) -> np.ndarray:
        return np.append(alpha, 1.0) if self.bias else np.asarray(alpha)


def _gram(x: np.ndarray, bins: np.ndarray, levels: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """[K + 1, K + 1, L, L] products of x / unit and its bins' indicators, and their rows' sums [K + 1, L].

    A few columns at a time, so that the indicators take no more memory for a wider signal.
    """
    values, places = torch.as_tensor(x), torch.as_tensor(bins)
    length, width = values.shape
    rows = (levels + 1) * length
    gram = values.new_zeros((rows, rows), dtype=torch.float64)
    sums = values.new_zeros((levels + 1, length), dtype=torch.float64)
    for start in range(0, width, COLUMNS):
        part, here = values[:, start : start + COLUMNS], places[:, start : start + COLUMNS]
        parts = torch.stack([part / unit, *((here == k).float() for k in range(1, levels + 1))])
        sums += parts.sum(2, dtype=torch.float64)
        flat = parts.view(rows, -1)
        gram += flat @ flat.T
    squares = gram.view(levels + 1, length, levels + 1, length).permute(0, 2, 1, 3)
    return squares.numpy(), sums.numpy()


def _inner(x_gram: np.ndarray, delta_gram: np.ndarray) -> np.ndarray:
    """[k, l, k', l'] of two Gram tensors: one product of matrices, by torch for its count of threads.

    NumPy's einsum makes it of strided views without BLAS, which at four levels takes ten times as long as all else.
    """
    x, delta = (torch.from_numpy(gram.reshape(len(gram) ** 2, -1)) for gram in (x_gram, delta_gram))
    parts = (len(x_gram), len(x_gram), len(delta_gram), len(delta_gram))
    return (x @ delta.T).numpy().reshape(parts).transpose(0, 2, 1, 3)


def _with_ones(gram: np.ndarray, sums: np.ndarray, one: float) -> tuple[np.ndarray, np.ndarray]:
    """With a column of `one` after x, and that column alone as a further part."""
    parts = len(gram) + 1
    wider = np.zeros((parts, parts, *gram.shape[2:]))
    wider[:-1, :-1] = gram
    wider[0, 0] += one * one
    wider[0, -1] = wider[-1, 0] = wider[-1, -1] = one * one
    wider_sums = np.concatenate([sums, np.full((1, sums.shape[1]), one)])
    wider_sums[0] += one
    return wider, wider_sums


def _solve(square: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """The least of v^T square v - 2 v^T linear; the shortest where several are (a bin may be empty)."""
    return np.linalg.lstsq(square, linear, rcond=1e-6)[0]
