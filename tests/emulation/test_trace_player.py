"""Replay on running traffic: changes come at absolute times of the run's clock, whatever a change itself costs."""

from time import monotonic, sleep

import pytest

from testbed.emulation.trace_player import TracePlayer
from testbed.errors import NetworkError
from testbed.experiment.load import read_faults
from testbed.faults import Schedule
from testbed.record.events import Faulted
from testbed.wan.trace import Change, Trace

TRACE = Trace("t", tuple(Change(k * 0.1, "a", "b", float(k + 1)) for k in range(5)))


def never(change: object) -> None:
    raise AssertionError("nothing is reset here")


def test_a_connection_is_reset_at_its_time_and_that_is_for_others_to_record():
    broken: list[tuple[str, float]] = []
    began_s = monotonic()
    schedule = Schedule(None, read_faults(["reset a/w0=a/lps at 200ms every 200ms"], "test"), {}, ["a/w0", "a/lps"])
    player = TracePlayer(
        schedule, never, 0.0, 0.0, began_s, 1.0, lambda each: broken.append((each.link, monotonic() - began_s))
    )
    sleep(0.5)
    assert {type(event) for event in player.stop()} == {Faulted}
    assert [link for link, _ in broken] == ["a/w0=a/lps"] * 2
    assert [at_s for _, at_s in broken] == pytest.approx([0.2, 0.4], abs=0.1)


def test_the_rates_in_force_are_set_at_once_and_the_rest_in_order():
    rates = []
    player = TracePlayer(
        Schedule(TRACE), lambda change: rates.append(change.goodput_mbit), 0.15, 0.15, monotonic(), 1.0, never
    )
    assert rates == [2.0]
    sleep(0.5)
    applied = player.stop()
    assert rates == [2.0, 3.0, 4.0, 5.0]
    assert [event.link for event in applied] == ["a>b"] * 3
    assert [event.time_s - event.late_s for event in applied] == pytest.approx([0.2, 0.3, 0.4])


@pytest.mark.slow
def test_a_slow_change_does_not_shift_those_after_it():
    player = TracePlayer(Schedule(TRACE), lambda change: sleep(0.05), 0.0, 0.0, monotonic(), 2.0, never)
    sleep(1.2)
    applied = player.stop()
    assert [event.time_s - event.late_s for event in applied] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert len(applied) == 4


def test_a_change_that_fails_is_told_when_the_player_stops():
    def refuse(change):
        if change.goodput_mbit > 1:
            raise NetworkError("no WAN link a>b")

    player = TracePlayer(Schedule(TRACE), refuse, 0.0, 0.0, monotonic(), 1.0, never)
    sleep(0.3)
    with pytest.raises(NetworkError):
        player.stop()
