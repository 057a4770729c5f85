"""A run that is told to stop stops, whatever Python is doing at that moment."""

from __future__ import annotations

import signal
import time

import pytest

from testbed.harness.pool import signals_interrupt


class Interrupted:
    """Is interrupted while it is deleted, where Python drops what is raised."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_an_object_is_deleted_is_not_lost(number: signal.Signals):
    it = Interrupted(number)
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        del it
        time.sleep(5)
        pytest.fail("it was lost")


def test_other_errors_are_told_as_ever(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def __del__(self) -> None:
            raise ValueError("no")

    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    it = Broken()
    with signals_interrupt():
        del it
    assert [type(what.exc_value) for what in told] == [ValueError]
