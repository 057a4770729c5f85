"""What a run writes down of itself before it plays, and goes by while it does."""

from __future__ import annotations

from pathlib import Path

from small_runs import experiment, start

from testbed.record.info import MetricInfo
from testbed.record.reader import load

STOPS = {"probe_steps": 2, "probe_images": 50, "stop_at_target": True}


def test_a_target_on_a_metric_that_is_best_low_is_not_met_by_being_above_it(small_data: None, tmp_path: Path) -> None:
    target = {"metric": "loss", "value": 0.1}
    run = load(start(experiment(systems={"baseline": {}}, target=target, run=STOPS), tmp_path))
    assert run.info.target_metric == MetricInfo(name="loss", label="loss", unit="", better="lower")
    assert len(run.results[0].steps) == 8


def test_a_target_on_no_metric_has_none_in_the_facts(small_data: None, tmp_path: Path) -> None:
    run = load(start(experiment(systems={"baseline": {}}, target={"accuracy": 0.9}), tmp_path))
    assert run.info.target_metric is None
