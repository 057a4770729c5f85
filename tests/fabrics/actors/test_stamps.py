"""Stamps reach the receiver in shared memory, in the order of their messages."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.fabrics.actors.stamps import SLOTS, Stamps
from testbed.roles.trail import LONGEST

seconds = st.floats(0, 1e6)
hops = st.lists(st.tuples(seconds, st.floats(1, 1e6), st.booleans()), max_size=LONGEST).map(tuple)


@pytest.fixture
def ends(tmp_path: Path):
    """(the sender's, the receiver's)"""
    return Stamps(tmp_path / "ring"), Stamps(tmp_path / "ring")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(seconds, hops), max_size=5))
def test_a_stamp_arrives_as_it_was_put(ends, stamps):
    sender, receiver = ends
    for stamp in stamps:
        sender.put(stamp)
    assert [receiver.take() for _ in stamps] == stamps


def test_stamps_go_round_the_ring(ends):
    sender, receiver = ends
    for number in range(3 * SLOTS):
        sender.put((float(number), ()))
        assert receiver.take() == (float(number), ())


def test_a_stamp_that_later_ones_have_replaced_is_lost_and_no_other(ends):
    sender, receiver = ends
    for number in range(SLOTS + 1):
        sender.put((float(number), ()))
    assert receiver.take() is None
    assert receiver.take() == (1.0, ())


def test_a_ring_of_an_earlier_run_is_used_anew(ends, tmp_path):
    sender, _ = ends
    sender.put((1.0, ()))
    sender.put((2.0, ()))
    again, receiver = Stamps(tmp_path / "ring"), Stamps(tmp_path / "ring")
    again.put((3.0, ()))
    assert receiver.take() == (3.0, ())
