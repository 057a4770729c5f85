"""What faults cost, from records alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import experiment, plain, start, toml

from testbed.experiment.load import load as load_experiment
from testbed.record.reader import load
from testbed.record.series import grid
from testbed.report.numbers import disturbed, faultless
from testbed.report.numbers.summary import summarize
from testbed.report.page.markdown import markdown
from testbed.report.pictures.against import against
from testbed.report.pictures.registry import draw

PARTS = {"systems": {"baseline": {}}, "training": {"steps": 20}, "run": {"checkpoint_steps": 10}}


def test_a_pause_costs_as_long_as_it_lasts(small_data: None, tmp_path: Path) -> None:
    plain = load(start(experiment(**PARTS), tmp_path / "plain"))
    step_s = plain.results[0].steps["time_s"].max() / 20
    assert not len(disturbed.disturbed(plain)) and "Under faults" not in markdown(plain, summarize(plain))
    faults = [f"pause us-east-1/lps at {5 * step_s}s for {8 * step_s}s"]
    run = load(start(experiment(**PARTS, faults=faults), tmp_path / "paused"))
    (row,) = disturbed.disturbed(run).to_dict("records")
    assert row["faults"] == 1
    assert row["step_s"] == pytest.approx(step_s, rel=0.02)
    assert row["lost_s"] == pytest.approx(8 * step_s, abs=1.1 * step_s)  # it would have been idle for a part of one
    assert row["useful"] == pytest.approx(20 / (20 + row["lost_s"] / step_s), rel=0.02)
    assert 0 < row["recovery_s"] <= 1.1 * step_s
    assert "| Baseline |" in markdown(run, summarize(run)).partition("## Under faults")[2]
    (axes,) = draw(run, "faults").axes
    assert axes.get_title(loc="left") == "Steps done under faults"


@pytest.mark.slow
def test_a_fault_whose_beginning_is_damaged_is_one_moment(small_data: None, tmp_path: Path) -> None:
    folder = start(experiment(**PARTS, faults=["pause us-east-1/lps at 0.2s for 0.1s"]), tmp_path)
    (path,) = folder.rglob("events.jsonl")
    begun, over = b'{"event":"fault","time_s":0.2,', b'{"event":"fault","time_s":0.3,'
    assert path.read_bytes().count(begun) == 1
    path.write_bytes(path.read_bytes().replace(begun, over))
    run = load(folder)
    (span,) = disturbed.spans(run.results[0])
    assert span.begin_s == span.end_s == pytest.approx(0.3)
    assert "1 damaged lines of events.jsonl were left out" in run.results[0].missing


@pytest.mark.slow
def test_a_fault_that_lasts_to_the_end_has_no_recovery(small_data: None, tmp_path: Path) -> None:
    run = load(start(experiment(**PARTS, faults=["slow us-east-1/w0 factor=5 at 0.2s"]), tmp_path))
    (span,) = disturbed.spans(run.results[0])
    assert (span.begin_s, span.end_s, span.about) == (0.2, float("inf"), "slow us-east-1/w0")
    (cells,) = disturbed.rows(run)
    assert cells[3] == "—" or cells[3] == disturbed.NONE


@pytest.mark.slow
def test_who_is_left_out_stalls_and_loses_samples(small_data: None, tmp_path: Path) -> None:
    tolerant = {"baseline": {"tolerance": "leave-out", "patience_s": 0.05}}
    faults = ["pause us-west-1/w1 at 0.2s for 0.3s"]
    run = load(start(experiment(**{**PARTS, "systems": tolerant}, faults=faults), tmp_path / "tolerant"))
    (row,) = disturbed.disturbed(run).to_dict("records")
    done = int(run.results[0].steps["workers"].sum())
    assert row["left_out"] == 1
    assert row["samples_lost"] == pytest.approx(1 - done / (4 * 20)) and 0 < row["samples_lost"] < 0.2
    assert row["catch_up_bytes"] > 4 * 3000
    assert 0.25 < row["stall_s"] < 0.5
    assert disturbed.stalls(run.results[0]).idxmax() == "us-west-1/w1"
    waiting = load(start(experiment(**PARTS, faults=faults), tmp_path / "waiting"))
    (patient,) = disturbed.disturbed(waiting).to_dict("records")
    assert patient["samples_lost"] == patient["left_out"] == patient["catch_up_bytes"] == 0
    assert patient["lost_s"] > row["lost_s"] + 0.1


@pytest.mark.slow
def test_how_far_regions_drift_apart_is_recorded(small_data: None, tmp_path: Path) -> None:
    parts = {"systems": {"diloco": {"local_steps": 5}}, "training": {"steps": 20}, "run": {"probe_steps": 1}}
    run = load(start(experiment(**parts, faults=["pause us-east-1/lps at 0.1s for 0.1s"]), tmp_path))
    apart = run.results[0].events.query("event == 'diverged'")
    assert set(apart["region"]) == {"us-west-1", "us-east-1"}
    by_step = apart.groupby("step")["distance"].max()
    assert by_step[5] == by_step[10] == pytest.approx(0, abs=1e-6) and by_step[4] > by_step[1] > 0
    assert disturbed.disturbed(run)["divergence"][0] == pytest.approx((apart["distance"] / apart["norm"]).max())


@pytest.mark.slow
def test_a_series_of_faults_is_set_against_its_run_without(small_data: None, tmp_path: Path) -> None:
    step_s = 0.054
    swept = {
        "faults": [[], [f"pause us-east-1/lps at 0.2s for {10 * step_s}s"], ["rate us-west-1>us-east-2 mbit=50 at 0s"]]
    }
    file = tmp_path / "series.toml"
    file.write_text(toml(plain(**PARTS)) + toml({"sweep": swept}))
    points = load_experiment(str(file))
    labels = [point.label for point in points]
    assert labels == ["faults=none", "faults=pause-us-east-1-lps", "faults=rate-us-west-1-us-east-2"]
    runs = {point.label: load(start(point.experiment, tmp_path / point.label)) for point in points}
    frames = {label: summarize(run) for label, run in runs.items()}
    found = faultless.against_faultless(runs, frames)
    assert list(found["point"]) == list(frames)[1:]
    plain_s, paused_s = (frames[label]["time_s"][0] for label in list(frames)[:2])
    assert found["time_ratio"][0] == pytest.approx(paused_s / plain_s)
    assert paused_s - plain_s == pytest.approx(10 * step_s, abs=2 * step_s)  # idle for a part of them anyhow
    (line, _) = faultless.rows(found, {label: label for label in frames})
    assert line[:3] == ["faults=pause-us-east-1-lps", "Baseline", f"{paused_s / plain_s:.2f}×"]
    assert not len(faultless.against_faultless(dict(list(runs.items())[1:]), dict(list(frames.items())[1:])))
    steps, target = against(
        found, {label: grid([Path(each) for each in labels]).called(label) for label in labels}, "A series"
    ).axes
    assert [tick.get_text() for tick in steps.get_yticklabels()] == ["pause-us-east-1-lps", "rate-us-west-1-us-east-2"]
    marked = [bars.lines[0].get_xdata()[0] for bars in steps.containers]
    assert marked == pytest.approx(list(found["time_ratio"])) and not target.containers  # it has no target


def test_a_run_that_ended_before_all_its_steps_has_no_time_for_them(small_data: None, tmp_path: Path) -> None:
    """Else a fault would seem to cost nothing that leaves no time for most of the steps."""
    ends = {"checkpoint_steps": 5, "stop_after_s": 1.2}
    paused = ["pause us-east-1/lps at 0.2s for 2s"]
    runs = {
        label: load(start(experiment(**{**PARTS, "run": ends}, faults=faults), tmp_path / label))
        for label, faults in (("none", []), ("paused", paused))
    }
    frames = {label: summarize(run) for label, run in runs.items()}
    assert [len(run.results[0].steps) for run in runs.values()] == [20, 5]
    assert all(frame["status"].eq("finished").all() for frame in frames.values())
    assert faultless.against_faultless(runs, frames)["time_ratio"].isna().all()
    assert faultless.against_faultless(runs, {**frames, "paused": frames["none"]})["time_ratio"].eq(1.0).all()
