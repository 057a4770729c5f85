"""The papers' numbers are those of the papers, and stand beside the runs they belong to."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from testbed import experiment
from testbed.learning.models import MODELS, parameter_count
from testbed.record.events import Evaluated, Sent
from testbed.record.info import RunInfo
from testbed.record.reader import load
from testbed.record.recorder import Recorder
from testbed.report import beside, papers, wording
from testbed.report.looks import known
from testbed.report.papers import Figure
from testbed.report.summary import summarize
from testbed.report.tables import markdown, show
from testbed.systems import SYSTEMS

MakeRun = Callable[..., Path]


def find(**fields: Any) -> list[Figure]:
    return [one for one in papers.figures() if all(getattr(one, key) == value for key, value in fields.items())]


def info_of(name: str, scale: str = "", place: int = 0) -> RunInfo:
    """The facts of a run of an experiment file, as a run records them."""
    return RunInfo(target=name, experiment=experiment.load(name, scale=scale)[place].experiment.as_dict())


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"source": "weightgrad", "quantity": "speedup", "model": "cifarnet"}, 5.36),
        ({"source": "weightgrad", "experiment": "vggnet", "system": "terngrad"}, 0.863),
        ({"source": "weightgrad", "quantity": "accuracy", "system": "dgc"}, 0.582),
        ({"quantity": "accuracy", "system": "terngrad", "point": {"topology.workers_per_region": 16}}, 0.828),
        ({"experiment": "mqgrad-12", "system": "mqgrad", "time_s": 54_000.0}, 0.656),
        ({"experiment": "mqgrad-18", "system": "fixed-8", "time_s": 144_000.0}, 0.682),
        ({"quantity": "compression", "model": "lenet", "system": "isgq-mse", "point": {"training.batch_size": 512}}, 180),
        ({"quantity": "sent-gbyte", "system": "qgt", "point": {"options.threshold": 5e-4}}, 4204.91),
    ],
)
def test_numbers_are_the_papers(fields: dict[str, Any], value: float) -> None:
    assert [figure.value for figure in find(**fields)] == [value]


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


def test_figures_name_what_there_is() -> None:
    for figure in papers.figures():
        assert {figure.system, figure.versus or figure.system} <= set(SYSTEMS) & set(known())
        assert figure.model in ("", *MODELS)
        assert figure.quantity in beside.ROWS and figure.conditions and papers.citation(figure)
        assert not figure.experiment or experiment.find(figure.experiment)


def test_every_number_of_a_paper_meets_a_run_of_its_experiment() -> None:
    """Scales and sweeps reach each of them; otherwise it would never be shown."""
    met: list[Figure] = []
    for name in {figure.experiment for figure in papers.figures()} - {""}:
        for scale in ("", "paper", "paper-4", "lenet", "cifarnet", "alexnet"):
            try:
                points = experiment.load(name, scale=scale)
            except experiment.InputError:
                continue
            for point in points:
                info = RunInfo(target=name, experiment=point.experiment.as_dict())
                met += [figure for figure in papers.fitting(info) if figure.system in point.experiment.systems]
    assert [figure for figure in papers.figures() if figure.experiment and figure not in met] == []


def test_a_number_stands_only_beside_its_experiment_model_and_point() -> None:
    eight = [f.value for f in papers.fitting(info_of("cifarnet")) if f.quantity == "accuracy"]
    four = [f.value for f in papers.fitting(info_of("cifarnet", "paper-4")) if f.quantity == "accuracy"]
    assert eight == [0.8319, 0.8304, 0.8140, 0.8321] and four == [0.8456, 0.8348, 0.8241, 0.8456]
    assert not [f for f in papers.fitting(info_of("systems")) if f.quantity == "accuracy"]
    gains = [f.value for f in papers.fitting(info_of("isgq", place=1)) if f.system == "isgq-mse"]
    assert gains == [67]  # FC at 1,024: neither another batch nor another model
    thresholds = {f.system: f.value for f in papers.fitting(info_of("threshold-nin", place=3)) if f.quantity == "sent-gbyte"}
    assert thresholds == {"baseline": 53_433, "wgt": 6572.01, "bgt": 31.22, "qgt": 8525.72}


def test_the_papers_numbers_stand_beside(make_run: MakeRun) -> None:
    run = load(make_run())
    frame = summarize(run)
    own = frame.set_index("system").loc["weightgrad"]
    rows = {row[0]: row for row in beside.paper_rows(run, frame)}
    speedup = rows["speedup of WeightGrad over Baseline"]
    assert speedup[1:3] == ["5.36×", wording.times(own["speedup_vs_baseline"])]
    assert "KDD 2020, 5.3.3, figure 5d (2 x 4 workers" in speedup[3]
    accuracy = rows["accuracy of WeightGrad, workers per region 4"]
    assert accuracy[1:3] == ["83.2 %", wording.percent(own["final_accuracy"])]
    assert not [words for words in rows if "Gaia" in words]  # it was not run


def test_numbers_stand_in_the_summary_and_on_the_terminal_with_their_conditions(make_run: MakeRun) -> None:
    run = load(make_run())
    frame = summarize(run)
    out = io.StringIO()
    show(run, frame, Console(file=out, width=160))
    for text in (markdown(run, frame), out.getvalue()):
        for row in beside.paper_rows(run, frame):
            assert all(cell in text for cell in row[:3])
        assert "batch 512, 8 workers)" in text and "tree topology" in text and "120 steps" in text


def with_events(folder: Path, system: str, *events: Sent | Evaluated) -> None:
    """Add events to a finished record."""
    recorder = Recorder(folder / system / "seed-0")
    for event in events:
        recorder.record(event)
    recorder.finish()


def rows_of(folder: Path) -> dict[str, tuple[str, str]]:
    run = load(folder)
    return {words: (paper, here) for words, paper, here, _ in beside.paper_rows(run, summarize(run))}


def test_an_accuracy_is_taken_at_the_papers_time(make_run: MakeRun) -> None:
    late = [Evaluated(time_s=18_000 - 1, step=9, model="full", loss=1.0, accuracy=0.5, images=10)]
    late += [Evaluated(time_s=18_000 + 1, step=10, model="full", loss=1.0, accuracy=0.9, images=10)]
    run = load(make_run(systems=["mqgrad"], target={}))
    result = run.results[0]
    result.__dict__["steps"] = pd.DataFrame({"time_s": [1.0, 40_000.0]})
    result.__dict__["evaluations"] = pd.DataFrame([{"time_s": e.time_s, "model": e.model, "accuracy": e.accuracy} for e in late])
    here = beside.Here(run, summarize(run))
    [figure] = find(experiment="mqgrad-12", system="mqgrad", time_s=18_000.0)
    assert here.accuracy(figure) == 0.5
    [after] = find(experiment="mqgrad-12", system="mqgrad", time_s=54_000.0)
    assert wording.is_missing(here.accuracy(after))
