"""The papers' numbers are those of the papers, and stand beside the runs they belong to."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from small_runs import experiment as played
from small_runs import start

from testbed.errors import InputError
from testbed.experiment import load as experiment
from testbed.record.events import Evaluated, RunEnded, StepDone
from testbed.record.info import DataInfo, RunInfo
from testbed.record.reader import load
from testbed.record.recorder import Recorder
from testbed.report.looks import known
from testbed.report.numbers import wording
from testbed.report.numbers.summary import aggregate, relate, summarize
from testbed.report.numbers.traffic import traffic
from testbed.report.page.markdown import markdown
from testbed.report.papers import beside, stated
from testbed.report.papers.stated import Number
from testbed.report.terminal import show
from testbed.systems import SYSTEMS
from testbed.workloads import Model
from testbed.workloads.data.base import DATASETS
from testbed.workloads.models.base import MODELS, parameter_count

MakeRun = Callable[..., Path]
BATCH_512 = {"training.batch_size": 512.0}


def find(**fields: Any) -> list[Number]:
    return [one for one in stated.numbers() if all(getattr(one, key) == value for key, value in fields.items())]


def info_of(name: str, scale: str = "", place: int = 0) -> RunInfo:
    """The facts of a run of an experiment file, as a run records them."""
    return RunInfo(target=name, experiment=experiment.load(name, scale=scale)[place].experiment.as_dict())


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"source": "weightgrad", "quantity": "speedup", "workloads": ("cifarnet on cifar10",)}, 5.36),
        ({"source": "weightgrad", "experiment": "vggnet", "system": "terngrad"}, 0.863),
        ({"source": "weightgrad", "quantity": "accuracy", "system": "dgc"}, 0.582),
        ({"quantity": "accuracy", "system": "terngrad", "point": {"topology.workers_per_region": 16}}, 0.828),
        ({"experiment": "mqgrad-12", "system": "mqgrad", "time_s": 54_000.0}, 0.656),
        ({"experiment": "mqgrad-18", "system": "fixed-8", "time_s": 144_000.0}, 0.682),
        (
            {"workloads": ("lenet on mnist",), "system": "isgq-mse", "point": {"training.batch_size": 512}},
            180,
        ),
        ({"source": "terngrad", "quantity": "throughput", "workloads": ("alexnet on imagenet",)}, 3.04),
        ({"quantity": "sent-gbyte", "system": "qgt", "point": {"options.threshold": 5e-4}}, 4204.91),
    ],
)
def test_numbers_are_the_papers(fields: dict[str, Any], value: float) -> None:
    assert [number.value for number in find(**fields)] == [value]


def test_every_table_of_the_papers_is_whole() -> None:
    counts = {
        ("weightgrad", "5.3.1, table 2"): 12,
        ("weightgrad", "5.3.2, table 3"): 10,
        ("terngrad", "4.1, table 1"): 4,
        ("mqgrad", "4.2, table 1"): 15,
        ("mqgrad", "4.2, table 2"): 15,
        ("mqgrad", "4.2, table 3"): 10,
        ("isgq", "5, table 1"): 36,
        ("isgq", "5, table 2"): 36,
        ("isgq", "5, table 3"): 4 * 5 * 3 + 2 * 3,
        ("thresholds", "3, tables 1 to 3"): 2 * (1 + 3 * 6),
    }
    assert {key: len(find(source=key[0], where=key[1])) for key in counts} == counts


def test_numbers_name_what_there_is() -> None:
    for number in stated.numbers():
        assert {number.system, number.versus or number.system} <= set(SYSTEMS) & set(known())
        for workload in number.workloads:
            model, data = workload.split(" on ")
            assert model in MODELS and data in DATASETS
        assert number.quantity in beside.ROWS and number.conditions and stated.citation(number)
        assert not number.experiment or experiment.find(number.experiment)


@pytest.mark.slow
def test_every_number_of_a_paper_meets_a_run_of_its_experiment() -> None:
    """Scales and sweeps reach each of them; otherwise it would never be shown."""
    met: list[Number] = []
    for name in {number.experiment for number in stated.numbers()} - {""}:
        for scale in ("", "paper", "paper-4", "lenet", "cifarnet", "alexnet", "infiniband-vgg-a"):
            try:
                points = experiment.load(name, scale=scale)
            except InputError:
                continue
            for point in points:
                info = RunInfo(target=name, experiment=point.experiment.as_dict())
                met += [number for number in stated.fitting(info) if number.system in point.experiment.systems]
    assert [number for number in stated.numbers() if number.experiment and number not in met] == []


def test_a_number_stands_only_beside_its_experiment_model_and_point() -> None:
    eight = [f.value for f in stated.fitting(info_of("cifarnet")) if f.quantity == "accuracy"]
    four = [f.value for f in stated.fitting(info_of("cifarnet", "paper-4")) if f.quantity == "accuracy"]
    assert eight == [0.8319, 0.8304, 0.8140, 0.8321] and four == [0.8456, 0.8348, 0.8241, 0.8456]
    assert not [f for f in stated.fitting(info_of("systems")) if f.quantity == "accuracy"]
    gains = [f.value for f in stated.fitting(info_of("isgq", place=1)) if f.system == "isgq-mse"]
    assert gains == [67]  # FC at 1,024: neither another batch nor another model
    thresholds = {
        f.system: f.value
        for f in stated.fitting(info_of("threshold-nin", "paper", place=3))
        if f.quantity == "sent-gbyte"
    }
    assert thresholds == {"baseline": 53_433, "wgt": 6572.01, "bgt": 31.22, "qgt": 8525.72}


def test_a_number_stands_only_beside_its_model_and_data_on_its_wan() -> None:
    """CifarNet's 83.2 % says nothing of another model, of other data, of generated ones; a speedup is its WAN's."""

    def beside_it(changes: dict[str, Any] | None = None, **data: bool) -> set[str]:
        info = RunInfo(target="cifarnet", experiment=experiment.load("cifarnet", changes)[0].experiment.as_dict())
        info.data = DataInfo(**data)
        return {number.quantity for number in stated.fitting(info)}

    assert beside_it() == {"speedup", "accuracy"}
    assert (
        beside_it({"model.name": "tiny"})
        == beside_it({"data.dataset": "synthetic"})
        == beside_it(stand_in=True)
        == set()
    )
    assert beside_it({"topology.profile": "skyplane-22"}) == {"accuracy"}


def test_the_papers_numbers_stand_beside(make_run: MakeRun) -> None:
    it = load(make_run())
    frame = summarize(it)
    own = frame.set_index("system").loc["weightgrad"]
    rows = {row[0]: row for row in beside.paper_rows(it, frame)}
    speedup = rows["speedup of WeightGrad over Baseline"]
    assert speedup[1:3] == ["5.36×", wording.times(own["speedup_vs_baseline"])]
    assert "KDD 2020, 5.3.3, figure 5d (2 x 4 workers" in speedup[3]
    accuracy = rows["accuracy of WeightGrad"]
    assert accuracy[1:3] == ["83.2 %", wording.percent(own["final_accuracy"])]
    assert not [words for words in rows if "Gaia" in words]  # it was not run


def test_of_a_system_that_was_stopped_before_its_first_step_nothing_is_told(make_run: MakeRun) -> None:
    it = load(make_run(ends={"weightgrad": (0, "interrupted")}))
    rows = {row[0]: row for row in beside.paper_rows(it, summarize(it))}
    assert rows["speedup of WeightGrad over Baseline"][2] not in ("", rows["speedup of WeightGrad over Baseline"][1])


def test_a_speedup_beside_a_papers_is_the_tables(make_run: MakeRun) -> None:
    """Of several seeds the geometric mean, as everywhere else in the report."""
    it = load(make_run())
    both = pd.concat([summarize(it), summarize(it).assign(seed=1)], ignore_index=True)
    both.loc[(both["system"] == "weightgrad") & (both["seed"] == 1), "time_to_target_s"] /= 9
    related = relate(both)
    here = beside.Here(it, related).speedup(number("speedup", "weightgrad", versus="baseline"))
    of_table = aggregate(related).set_index("system").loc["weightgrad", "speedup_vs_baseline"]
    first = related.set_index(["system", "seed"]).loc[("weightgrad", 0), "speedup_vs_baseline"]
    assert here == pytest.approx(of_table) == pytest.approx(3 * first)


@pytest.mark.slow
def test_beside_a_timing_only_run_stands_throughput_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = load(start(played(compute={"math": "none"}, systems={"baseline": {}, "terngrad": {}}), tmp_path))
    both = [number(quantity, versus="baseline") for quantity in ("throughput", "accuracy")]
    monkeypatch.setattr(beside, "fitting", lambda info: both)
    monkeypatch.setattr(beside, "citation", lambda number: "a paper")
    assert [row[0] for row in beside.paper_rows(it, summarize(it))] == ["throughput of TernGrad over Baseline"]


def test_a_number_may_be_tied_to_a_word() -> None:
    stands = [
        [one.value for one in stated.fitting(info_of("terngrad-scaling", scale, place)) if one.quantity == "throughput"]
        for scale, place in (("", 1), ("", 2), ("infiniband", 1), ("infiniband-vgg-a", 7), ("vgg-a", 7))
    ]
    assert stands == [[3.04], [], [], [2], []]


def test_numbers_stand_in_the_summary_and_on_the_terminal_with_their_conditions(make_run: MakeRun) -> None:
    it = load(make_run())
    frame = summarize(it)
    out = io.StringIO()
    show(it, frame, Console(file=out, width=160))
    for text in (markdown(it, frame), out.getvalue()):
        for row in beside.paper_rows(it, frame):
            assert all(cell in text for cell in row[:3])
        assert "batch 512, 8 workers)" in text and "tree topology" in text and "120 steps" in text


def number(quantity: stated.Quantity, system: str = "terngrad", **fields: Any) -> Number:
    return Number(
        source="", where="", conditions="", workloads=(), quantity=quantity, system=system, value=1.0, **fields
    )


def measured(here: beside.Here, quantity: stated.Quantity, system: str = "terngrad", **fields: Any) -> float:
    return beside.ROWS[quantity].measure(here, number(quantity, system, **fields))


@pytest.mark.slow
def test_what_was_measured_is_the_records(small_data: None, tmp_path: Path) -> None:
    flat = played(
        systems={"baseline": {}, "terngrad": {}}, topology={"kind": "flat"}, target={"loss": 100, "window": 1}
    )
    frame = summarize(it := load(start(flat, tmp_path)))
    own, base = (frame.set_index("system").loc[system] for system in ("terngrad", "baseline"))
    here = beside.Here(it, frame)
    float32 = 4 * parameter_count(Model(name="tiny"), 10)
    assert measured(here, "compression", "baseline") == pytest.approx(1.0, rel=0.005)
    message = traffic(it).loc["terngrad", "worker up"]
    assert measured(here, "compression") == pytest.approx(float32 / message)
    steps, workers = flat.training.steps, len(flat.roles.workers)
    assert measured(here, "sent-gbyte", "baseline") == pytest.approx(float32 * steps * workers / 1e9, rel=0.005)
    assert measured(here, "sent-gbyte") < measured(here, "sent-gbyte", "baseline") / 4
    assert measured(here, "throughput", versus="baseline") == pytest.approx(base["mean_step_s"] / own["mean_step_s"])
    coding_s = own["mean_codec_s"]
    assert measured(here, "processing") == pytest.approx(200 * (own["mean_compute_s"] + coding_s))
    assert measured(here, "coding-share") == pytest.approx(coding_s / own["mean_step_s"]) and coding_s > 0
    sooner_s = base["time_to_target_s"] - own["time_to_target_s"]
    assert measured(here, "sooner", versus="baseline") == pytest.approx(sooner_s)
    gap = own["final_accuracy"] - base["final_accuracy"]
    assert measured(here, "accuracy-gap", versus="baseline") == pytest.approx(gap)
    assert wording.is_missing(measured(here, "accuracy-top5"))


def test_top5_is_the_last_test_of_the_result(make_run: MakeRun) -> None:
    folder = make_run(systems=["baseline"], seeds=[0, 1])
    for seed, shares in ((0, (0.1, 0.4)), (1, (0.1, 0.6))):
        recorder = Recorder.join(folder / "baseline" / f"seed-{seed}")
        for time_s, share in zip((300.0, 301.0), shares, strict=True):
            more = {"time_s": time_s, "step": 150, "loss": 1.0, "accuracy": 0.2, "images": 10}
            recorder.record(Evaluated(model="full", metrics={"top5_accuracy": share}, **more))
        recorder.record(RunEnded(time_s=400.0, step=150, how="finished"))
        recorder.finish()
    it = load(folder)
    assert measured(beside.Here(it, summarize(it)), "accuracy-top5", "baseline") == pytest.approx(0.5)


def test_an_accuracy_is_taken_at_the_papers_time(make_run: MakeRun) -> None:
    folder = make_run(systems=["baseline"], ends={"baseline": (120, None)})
    recorder = Recorder.join(folder / "baseline" / "seed-0")  # the record's test is at 228 s; here is a later one
    last = Evaluated(time_s=300.0, step=150, model="full", loss=1.0, accuracy=0.9, images=10)
    for event in (last, StepDone(time_s=400.0, node="us-west-1/w0", step=120, loss=1.0, compute_s=0.1)):
        recorder.record(event)
    recorder.record(RunEnded(time_s=400.0, step=121, how="finished"))
    recorder.finish()
    it = load(folder)
    here = beside.Here(it, summarize(it))
    first = float(it.results[0].evaluations["accuracy"].iloc[0])
    assert measured(here, "accuracy", "baseline", time_s=299.0) == first != 0.9
    assert measured(here, "accuracy", "baseline", time_s=300.0) == measured(here, "accuracy", "baseline") == 0.9
    for outside_s in (200.0, 401.0):  # before the first test; after the end
        assert wording.is_missing(measured(here, "accuracy", "baseline", time_s=outside_s))


@pytest.mark.slow
def test_what_has_no_number_here_says_so(make_run: MakeRun) -> None:
    it = load(make_run(systems=["baseline", "mqgrad"]))
    it.info.target, it.info.experiment["model"] = "mqgrad-12", {"name": "mqgrad-cnn"}
    rows = {words: here for words, _, here, _ in beside.paper_rows(it, summarize(it))}
    assert rows["accuracy of MQGrad, after 5 h"] == "not measured: ended after 78.0 s"
    assert rows["share of the time spent coding, MQGrad"] == "not measured"
    never = load(make_run("never", target={"loss": 0.1, "window": 10}))
    rows = {words: here for words, _, here, _ in beside.paper_rows(never, summarize(never))}
    assert rows["speedup of WeightGrad over Baseline"] == "not reached"
    stopped = load(make_run("stopped", seeds=(0, 1), ends={("baseline", 1): (110, None)}))
    rows = {words: here for words, _, here, _ in beside.paper_rows(stopped, summarize(stopped))}
    assert rows["speedup of WeightGrad over Baseline"] == "not measured", "both reached it, one seed has no baseline"


def test_a_total_comes_with_its_share_of_the_baselines() -> None:
    fit = stated.fitting(info_of("threshold-nin", "paper", place=3))
    texts = {one.system: beside.stated(one, fit) for one in fit if one.quantity == "sent-gbyte"}
    assert texts == {
        "baseline": "53.4 TB",
        "wgt": "6.57 TB (12.3 % of the baseline's)",
        "bgt": "31.2 GB (0.058 % of the baseline's)",
        "qgt": "8.53 TB (16.0 % of the baseline's)",
    }


def test_a_range_is_written_as_one() -> None:
    [one] = find(quantity="accuracy-gap")
    assert beside.stated(one, [one]) == "−0.22 points to +0.15 points"
