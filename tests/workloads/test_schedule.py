"""Schedules at steps worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.schedule import Constant, Cosine, Exponential, Polynomial, Schedule, Staircase

STEPS, EPOCH = 400, 50


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Constant(0.1), {0: 0.1, 399: 0.1}),
        (Polynomial(0.1), {0: 0.1, 100: 0.1 * 0.75**0.5, 300: 0.05, 400: 0.0, 500: 0.0}),
        (Polynomial(0.1, power=1.0, decay_steps=200), {0: 0.1, 50: 0.075, 200: 0.0, 399: 0.0}),
        (Staircase(0.1, every_steps=150), {0: 0.1, 149: 0.1, 150: 0.01, 300: 0.001}),
        (Staircase(0.1), {133: 0.1, 134: 0.01, 268: 0.001, 399: 0.001}),
        (Cosine(0.1), {0: 0.005, 9: 0.05, 19: 0.1, 20: 0.1, 210: 0.055, 400: 0.01, 500: 0.01}),
        (Cosine(0.1, warmup_steps=0, final=0.0), {0: 0.1, 100: 0.1 * (0.5 + 0.125**0.5), 200: 0.05, 400: 0.0}),
        (Cosine(0.1, warmup_steps=1000), {0: 1e-4, 399: 0.04}),
        (Exponential(0.1), {0: 0.1, 49: 0.1, 50: 0.098, 100: 0.09604}),
    ],
    ids=repr,
)
def test_known_steps(schedule: Schedule, rates: dict[int, float]) -> None:
    for step, rate in rates.items():
        assert schedule.rate_at(step, STEPS, EPOCH) == pytest.approx(rate, abs=1e-12)


@given(
    schedule=st.sampled_from(
        [Constant(0.3), Polynomial(0.3), Staircase(0.3), Exponential(0.3), Cosine(0.3, warmup_steps=0)]
    ),
    steps=st.integers(1, 1000),
    epoch=st.integers(1, 100),
)
def test_rates_start_at_the_rate_and_never_rise(schedule: Schedule, steps: int, epoch: int) -> None:
    rates = [schedule.rate_at(step, steps, epoch) for step in range(steps)]
    assert rates[0] == 0.3
    assert all(later <= sooner for sooner, later in pairwise(rates))
    assert min(rates) > 0
