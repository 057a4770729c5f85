"""What a run was asked to do is read from any record, as far as it is understood."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import experiment

from testbed.record.info import DataInfo, MetricInfo, RunInfo
from testbed.report.numbers.asked import Target, data_name, experiment_of, flat, is_modelled, model_name

PLAIN = experiment()


def record(**changes: Any) -> RunInfo:
    """The record of `PLAIN` with other tables."""
    return RunInfo(experiment={**PLAIN.as_dict(), **changes})


def test_a_record_of_this_version_is_the_experiment_that_was_run() -> None:
    asked = experiment_of(record())
    for part in ("topology", "training", "model", "data", "compute", "network", "target", "run", "title"):
        assert getattr(asked, part) == getattr(PLAIN, part)
    assert asked.systems == PLAIN.as_dict()["systems"]


def test_what_this_version_does_not_know_is_passed_over_and_the_rest_is_read() -> None:
    training = {"steps": 77, "batch_size": "many", "optimizer": {"kind": "mylab.adafactor"}, "sharpness": 3}
    asked = experiment_of(record(training=training, systems={"mylab": {"depth": 2}}, weather={"rain": True}))
    assert (asked.training.steps, asked.training.batch_size) == (77, 0)
    assert asked.systems == {"mylab": {"depth": 2}} and asked.topology == PLAIN.topology


def test_names_of_plug_ins_that_are_not_here_are_read() -> None:
    info = record(model={"name": "mylab.net"}, data={"dataset": "mylab.birds"})
    assert (model_name(info), data_name(info)) == ("mylab.net", "mylab.birds")


@pytest.mark.parametrize("stated", [{}, {"target": 3, "data": None, "model": 7}, {"topology": "flat"}])
def test_what_a_record_does_not_say_is_empty(stated: dict[str, Any]) -> None:
    info = RunInfo(experiment=stated)
    asked = experiment_of(info)
    assert (model_name(info), data_name(info)) == ("", "")
    assert (asked.training.batch_size, asked.topology.regions, asked.target.loss) == (0, [], None)


def test_the_recorded_topology_and_data_go_before_what_the_experiment_says() -> None:
    info = record()
    info.topology = {"regions": ["mars"], "workers_per_region": 3, "trace": "storm"}
    info.data = DataInfo(dataset="CIFAR-10", stand_in=True)
    topology = experiment_of(info).topology
    assert (topology.regions, topology.workers_per_region, topology.trace) == (["mars"], 3, "storm")
    assert data_name(info) == "stand-in for CIFAR-10"


def test_the_first_versions_named_the_model_alone() -> None:
    assert model_name(record(model="vgg")) == "vgg"


def test_settings_are_listed_as_recorded_also_those_that_nobody_knows() -> None:
    tree = {"training": {"steps": 3, "optimizer": {"kind": "sgd"}}, "mine": {"x": None}, "systems": {"baseline": {}}}
    assert list(flat(tree)) == [
        ("training.steps", 3), ("training.optimizer.kind", "sgd"), ("mine.x", None), ("systems.baseline", {}),
    ]  # fmt: skip


def test_a_network_is_modelled_where_its_delays_were() -> None:
    assert is_modelled(RunInfo(delay_mechanism="modelled"))
    assert not is_modelled(RunInfo(delay_mechanism="netem", fabric="virtual")) and not is_modelled(RunInfo())


@pytest.mark.parametrize(
    ("named", "facts", "words"),
    [
        ("loss", {"target_metric": MetricInfo(name="loss", better="lower")}, "loss ≤ 1.5"),
        ("distance", {"target_metric": MetricInfo(name="distance", better="lower")}, "distance ≤ 1.5"),
        ("gain", {"target_metric": MetricInfo(name="gain"), "metric": MetricInfo(better="lower")}, "gain ≥ 1.5"),
        # Records from before the target's own metric was written down.
        ("loss", {}, "loss ≤ 1.5"),
        ("bits", {"metric": MetricInfo(name="bits", better="lower")}, "bits ≤ 1.5"),
        ("gain", {"metric": MetricInfo(name="bits", better="lower")}, "gain ≥ 1.5"),
    ],
)
def test_a_target_is_judged_by_which_end_of_its_own_metric_is_best(
    named: str, facts: dict[str, Any], words: str
) -> None:
    info = RunInfo(experiment={"target": {"metric": named, "value": 1.5}}, **facts)
    assert Target.of(info).in_words == (words,)


def test_what_a_target_asks_of_one_metric_it_asks_of_no_other() -> None:
    bits = Target(loss=2.0, metric="loss", value=1.5)
    assert (bits.of_metric("loss"), bits.of_metric("bits_per_character"), bits.of_metric("accuracy")) == (
        1.5,
        None,
        None,
    )
    assert Target(accuracy=0.4).of_metric("accuracy") == 0.4
    assert Target(metric="accuracy", value=0.3).of_metric("accuracy") == 0.3
