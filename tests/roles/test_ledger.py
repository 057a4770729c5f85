"""What a role records of what it sent."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.message import Message
from testbed.record.events import Event, Sent, Sizes
from testbed.roles.ledger import SIZES_A_LINE, Ledger


@pytest.mark.parametrize("messages", [1, SIZES_A_LINE, 2 * SIZES_A_LINE + 7])
def test_each_size_is_recorded_once_and_none_is_left_out(messages: int) -> None:
    """Whatever the message was sent to, and at the end of a segment what there is; a line holds many."""
    told: list[Event] = []
    ledger = Ledger("a/lps", lambda: 1.0, told.append)
    ledger.noted = ("gradient",)
    ledger.begin(["a/w0", "a/w1"])
    for step in range(messages):
        for peer in ("a/w0", "a/w1"):
            ledger.sent(peer, Message("gradient", step, [np.zeros(step, np.uint8), np.zeros(3, np.float32)]))
            ledger.sent(peer, Message("ask", step))
    ledger.record_sent()
    found = [event for event in told if isinstance(event, Sizes)]
    assert len(found) == -(-messages // SIZES_A_LINE)
    sizes = [pair for each in found for pair in zip(each.steps, each.buffers, strict=True)]
    assert sizes == [(step, [step, 12]) for step in range(messages)]
    assert [event.messages for event in told if isinstance(event, Sent)] == [2 * messages] * 2
