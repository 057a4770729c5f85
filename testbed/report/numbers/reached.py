"""When a system first was as good as the target asks.

Every system is judged by the same rule: by the model that it reports, tested every `run.probe_steps` steps on the same
images while the clock stands still. Over the tests within the target's window of steps, and no fewer than `LEAST`, a
mean is taken: from one step to the next the loss of weights that are trained at a large rate goes up and down by more
than it falls in many. A mean stands for the middle of its tests, not for their end: half a window more for everybody
would hide half of what one system needs more steps than another. Between the last mean that missed the target and the
first that did not, the step is interpolated linearly. The time between the two tests around it is the resolution.

A record without such tests (an older one, or `probe_steps = 0`) is judged as it was made to be: by the workers' mean
training loss, and by the evaluations at checkpoints, with all that lies between two of them as the resolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from testbed.report.numbers.asked import Target

LEAST = 5  # tests whose mean is judged; before there are as many, all there are


@dataclass(frozen=True)
class Reached:
    """When the target was reached, after how many steps, and the time between the tests on either side."""

    time_s: float
    step: int
    resolution_s: float


def by_loss(steps: pd.DataFrame, probes: pd.DataFrame, target: Target) -> Reached | None:
    """When the target's loss was first reached; None if it never was, or none is asked for."""
    if target.loss is None:
        return None
    if len(probes):
        return _crossing(probes, probes["train_loss"].to_numpy() - target.loss, target.window)
    hits = np.flatnonzero(running_mean(steps["loss"].to_numpy(), target.window) <= target.loss)
    if not len(hits):
        return None
    times_s = np.append(0.0, steps["time_s"].to_numpy())
    first = hits[0] + 1
    return Reached(
        float(times_s[first]), int(steps["step"].iloc[hits[0]]) + 1, float(times_s[first] - times_s[first - 1])
    )


def by_test(tests: pd.DataFrame, probes: pd.DataFrame, target: Target) -> Reached | None:
    """When a test was first as good as the target's accuracy or metric asks; None as for `by_loss`."""
    missed_by = target.missed_by(probes if len(probes) else tests)
    if missed_by is None:
        return None
    if len(probes):
        return _crossing(probes, missed_by.to_numpy(), target.window)
    good = np.flatnonzero(missed_by.to_numpy() <= 0)
    if not len(good):
        return None
    times_s = np.append(0.0, tests["time_s"].to_numpy())
    first = good[0] + 1
    return Reached(float(times_s[first]), int(tests["step"].iloc[good[0]]), float(times_s[first] - times_s[first - 1]))


def _crossing(probes: pd.DataFrame, missed_by: np.ndarray, window: int) -> Reached | None:
    """Where the mean of `missed_by` over `window` steps first comes to 0."""
    steps, times_s = (probes[name].to_numpy(dtype="float64") for name in ("step", "time_s"))
    middles, means = smoothed(steps, missed_by, window)
    hits = np.flatnonzero(means <= 0)
    if not len(hits):
        return None
    after = hits[0]
    if after == 0:
        return Reached(float(times_s[0]), int(steps[0]), float(times_s[0]))
    before, fall = after - 1, means[after - 1] - means[after]
    share = means[before] / fall if np.isfinite(fall) else 1.0  # a model that was no number before
    step = float(middles[before] + share * (middles[after] - middles[before]))
    later = max(1, int(np.searchsorted(steps, step)))
    return Reached(_at(step, steps, times_s), int(np.ceil(round(step, 6))), float(times_s[later] - times_s[later - 1]))


def judged_s(probes: pd.DataFrame, window: int) -> float:
    """Up to when it is known whether the target has been reached: the middle of the last tests that make a mean."""
    steps, times_s = (probes[name].to_numpy(dtype="float64") for name in ("step", "time_s"))
    return _at(smoothed(steps, steps, window)[0][-1], steps, times_s)


def _at(step: float, steps: np.ndarray, times_s: np.ndarray) -> float:
    return float(np.interp(step, steps, times_s))


def smoothed(
    steps: np.ndarray, values: np.ndarray, window: int, to_the_end: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Means of values over `window` steps, over `LEAST` tests at least, and the steps in the middle of each.

    The first are of all tests that there are until then. `to_the_end` adds means of fewer and fewer of the last tests,
    for a curve that does not end half a window early.
    """
    lasts = np.arange(len(steps))
    firsts = np.minimum(np.searchsorted(steps, steps - window, side="right"), lasts + 1 - LEAST).clip(0)
    if to_the_end and len(steps):
        more = np.arange(firsts[-1] + 1, len(steps))
        firsts, lasts = np.append(firsts, more), np.append(lasts, np.full(len(more), len(steps) - 1))
    places = [slice(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
    return np.array([steps[it].mean() for it in places]), np.array([values[it].mean() for it in places])


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each `window` consecutive values, at the last of them; NaN before there are that many.

    Each mean is taken on its own, so that one huge or NaN value spoils no more than `window` of them.
    """
    means = np.full(len(values), np.nan)
    if len(values) >= window:
        means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    return means
