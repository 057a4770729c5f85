"""Replay on running traffic: changes come at absolute times of the run's clock, whatever a change itself costs."""

from time import monotonic, sleep

import pytest

from testbed.emulation.trace_player import TracePlayer
from testbed.errors import NetworkError
from testbed.faults import Schedule
from testbed.wan.trace import Change, Trace

TRACE = Trace("t", tuple(Change(k * 0.1, "a", "b", float(k + 1)) for k in range(5)))


def test_the_rates_in_force_are_set_at_once_and_the_rest_in_order():
    rates = []
    player = TracePlayer(
        Schedule(TRACE), lambda change: rates.append(change.goodput_mbit), 0.15, 0.15, monotonic(), 1.0
    )
    assert rates == [2.0]
    sleep(0.5)
    applied = player.stop()
    assert rates == [2.0, 3.0, 4.0, 5.0]
    assert [event.link for event in applied] == ["a>b"] * 3
    assert [event.time_s - event.late_s for event in applied] == pytest.approx([0.2, 0.3, 0.4])


def test_a_slow_change_does_not_shift_those_after_it():
    player = TracePlayer(Schedule(TRACE), lambda change: sleep(0.05), 0.0, 0.0, monotonic(), dilation=2.0)
    sleep(1.2)
    applied = player.stop()
    assert [event.time_s - event.late_s for event in applied] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert len(applied) == 4


def test_a_change_that_fails_is_told_when_the_player_stops():
    def refuse(change):
        if change.goodput_mbit > 1:
            raise NetworkError("no WAN link a>b")

    player = TracePlayer(Schedule(TRACE), refuse, 0.0, 0.0, monotonic(), dilation=1.0)
    sleep(0.3)
    with pytest.raises(NetworkError):
        player.stop()
