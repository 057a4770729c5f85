"""The picture of a search marks the trial that was taken."""

from __future__ import annotations

import pandas as pd
import pytest

from testbed.report.pictures import search


def test_what_reached_the_target_is_marked_though_a_score_of_what_missed_it_is_less() -> None:
    trials = pd.DataFrame(
        {"system": "cocod", "trial": [0, 1, 2], "rate": [0.004, 0.003, 0.002], "score": [25.0, 36.0, 40.0]}
    ).assign(reached=[False, True, True])
    figure = search.draw(trials, "loss ≤ 2")
    rings = [line for axes in figure.axes for line in axes.lines if line.get_markersize() == search.RING]
    assert [float(ring.get_ydata()[0]) for ring in rings] == [pytest.approx(36.0)]
