"""Mean and 95 % confidence interval of a few repeats (Student's t, two-sided), and of ratios paired by seed."""

from __future__ import annotations

import numpy as np

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any table; three decimals).
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z_975 = 1.959964


def t_975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with `freedom` >= 1 degrees of freedom, to three decimals.

    Beyond the table by the first two terms of the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5).
    """
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def half_width(values: np.ndarray) -> np.ndarray:
    """Half the width of the interval of the mean over the first axis; NaN where there are fewer than two repeats."""
    count = len(values)
    if count < 2:
        return np.full(np.shape(values)[1:], np.nan)
    return t_975(count - 1) * np.std(values, axis=0, ddof=1) / np.sqrt(count)


def of_ratios(values: np.ndarray, open_: float = 0.0) -> tuple[float, float, float]:
    """The geometric mean of ratios above 0, and both ends of the 95 % interval of their logarithms.

    Twice as fast and half as fast average to as fast. The ends are NaN for one ratio.

    Parameters
    ----------
    open_ : the part by which a ratio may be off since its times lie between two tests; the interval is so much wider on
        either side, and an only ratio has none all the same
    """
    logarithms = np.log(np.asarray(values, dtype="float64"))
    mean, half = logarithms.mean(), half_width(logarithms) + open_
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))
