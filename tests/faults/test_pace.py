"""A role that is slowed or stopped: how long its computations take."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.faults import Pace

changes = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=6).map(
    lambda each: sorted(dict(each).items())
)


@given(changes, st.integers(0, 50), st.integers(0, 30))
def test_a_computation_takes_as_long_as_the_pace_allows(changes, start, work):
    pace = Pace(iter([(float(when), value) for when, value in changes]))
    done_s, at = pace.done_s(float(start), float(work)), 1.0
    left, now = 4.0 * work, 4 * start  # in quarters of a second: every pace is a whole number of them
    values = {4 * when: value for when, value in changes}
    for when in sorted(values):
        at = values[when] if when <= now else at
    while left > 0 and now < 4 * 1000:
        at = values.get(now, at)
        left, now = left - at, now + 1
    if left > 0:
        assert done_s == inf
    else:
        assert done_s == pytest.approx(now / 4 + (left / at / 4 if left else 0.0), abs=1e-9)


@given(changes, st.integers(0, 50))
def test_who_stands_still_wakes_at_the_next_change_that_lets_it(changes, now):
    pace = Pace(iter([(float(when), value) for when, value in changes]))
    before = [value for when, value in changes if when <= now]
    if not before or before[-1]:
        assert pace.awake_s(float(now)) == now
    else:
        assert pace.awake_s(float(now)) == next((when for when, value in changes if when > now and value), inf)


def test_who_is_stopped_for_ever_is_never_done_nor_awake():
    pace = Pace(iter([(1.0, 0.0)]))
    assert (pace.done_s(0.0, 2.0), pace.awake_s(2.0), pace.awake_s(inf)) == (inf, inf, inf)


def test_changes_without_end_are_asked_for_as_they_are_needed():
    pace = Pace((float(when), float(when % 2)) for when in range(10**9))
    assert pace.done_s(0.0, 3.0) == 6.0
    assert pace.awake_s(1000.0) == 1001.0
