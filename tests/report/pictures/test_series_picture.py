"""The picture of a series: intervals end where values can no longer be."""

from __future__ import annotations

import pandas as pd
import pytest

from testbed.report.pictures.kinds.series import METRICS, _means


def test_an_interval_of_accuracies_stays_between_none_and_all() -> None:
    accuracy = next(metric for metric in METRICS if metric.column == "final_accuracy")
    frame = pd.DataFrame({"run": "a", "final_accuracy": [0.855, 0.8125, 0.3645]})
    means, halves = _means(frame, {0: "a"}, 1, accuracy)
    assert means[0] == pytest.approx(67.73, abs=0.01)
    assert means[0] + halves[1, 0] == 100.0 and 0 < means[0] - halves[0, 0] < 36.45
