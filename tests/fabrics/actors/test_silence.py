"""A run in which nothing happens any more ends and says who waits for whom; one that computes goes on."""

from __future__ import annotations

from time import monotonic, sleep

import pytest

from testbed.errors import RunError
from testbed.fabrics.actors.silence import Doing, Silence

LONG_AGO_S = -1e6


def silent() -> Silence:
    silence = Silence(0.01)
    sleep(0.02)
    assert silence.too_long
    return silence


def test_whatever_is_heard_begins_the_wait_anew() -> None:
    silence = silent()
    silence.heard()
    assert not silence.too_long


def test_who_waits_for_whom_is_said_and_who_cannot_answer_first() -> None:
    doing = {
        "a/lps": Doing(LONG_AGO_S, ("a/w0", "a/w1")),
        "a/w0": Doing(LONG_AGO_S, ailment="is stopped"),
        "a/w1": Doing(LONG_AGO_S),
    }
    with pytest.raises(RunError, match=r"nothing has happened for \d+ s: a/w0 is stopped; a/lps waits for a/w0, a/w1"):
        silent().judge(doing)


def test_a_role_that_computes_is_waited_for_however_long() -> None:
    silence = silent()
    silence.judge({"a/lps": Doing(LONG_AGO_S, ("a/w0",)), "a/w0": Doing(monotonic())})
    assert not silence.too_long


@pytest.mark.slow
def test_a_wait_that_began_late_has_its_time() -> None:
    silence = Silence(0.5)
    sleep(0.6)
    doing = {"a/lps": Doing(monotonic(), ("a/w0",)), "a/w0": Doing(LONG_AGO_S)}
    silence.judge(doing)
    sleep(0.6)
    with pytest.raises(RunError, match="nothing has happened for 1 s"):
        silence.judge(doing)


def test_of_many_only_the_first_are_named() -> None:
    doing = {f"a/w{k}": Doing(LONG_AGO_S, ("a/lps",)) for k in range(12)}
    with pytest.raises(RunError, match="a/w4 waits for a/lps and 7 more"):
        silent().judge(doing)
