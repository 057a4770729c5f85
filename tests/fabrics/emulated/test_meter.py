"""What crossed the emulated links, interval by interval."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.fabrics.emulated.fabric import _Meter
from testbed.record.events import LinkBytes


@pytest.mark.parametrize("ended_s", [0.9, 1.0, 1.1])
def test_a_segment_may_have_ended_just_before_its_last_sample(ended_s: float) -> None:
    """The roles' clocks say when it ended, and the next sample may have been due before they were asked."""
    recorded: list[LinkBytes] = []
    totals = {"a>b": 0}
    run = SimpleNamespace(link_interval_s=1.0)
    fabric: Any = SimpleNamespace(
        _schedule=None,
        _experiment=SimpleNamespace(run=run),
        dilation=1.0,
        sent_bytes=lambda: dict(totals),
        record=recorded.append,
    )
    meter = _Meter(fabric, monotonic() - 1.0, 0.0)  # the clock shows 1 s, when a sample is due
    totals["a>b"] = 1000
    meter.sample_when_due()
    totals["a>b"] = 1066
    meter.close(ended_s)
    assert [event.wire_bytes["a>b"] for event in recorded] == [1000, 66]
    assert all(event.interval_s > 0 for event in recorded)
    assert recorded[0].time_s < recorded[1].time_s
