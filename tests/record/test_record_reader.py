"""Runs are read back, whole or half-written, with a word on what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.record import frames, lines
from testbed.record.events import Evaluated, Exchange, LinkBytes, RunEnded, StepDone
from testbed.record.info import ResultInfo, RunInfo, write_info
from testbed.record.reader import Result, load
from testbed.record.recorder import Recorder

STEPS = 5


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two systems."""
    folder = tmp_path / "results" / "cifarnet" / "r1"
    info = RunInfo(target="cifarnet", run_id="r1", systems=["baseline", "adaptive"], seeds=[0])
    write_info(folder, info)
    for system in info.systems:
        write(folder / system / "seed-0", system)
    return folder


def write(folder: Path, system: str) -> None:
    recorder = Recorder(folder)
    for step in range(STEPS):
        recorder.record(StepDone(time_s=step + 1.0, node="a/w0", step=step, loss=2.0, compute_s=0.5))
        recorder.record(LinkBytes(time_s=step + 1.0, interval_s=1.0, wire_bytes={"a>b": 100}))
    recorder.record(Exchange(time_s=4.5, round=1, included=["a"], reason="significant"))
    recorder.record(Evaluated(time_s=5.0, step=STEPS, model="full", loss=1.0, accuracy=0.5, images=10))
    recorder.record(RunEnded(time_s=5.0, step=STEPS, how="finished"))
    recorder.finish()
    write_info(folder, ResultInfo(system=system, seed=0, steps=STEPS, status="finished"))


def first(run: Path) -> Result:
    return load(run).results[0]


def test_a_finished_run_is_read_whole_and_in_the_order_of_the_experiment(run: Path) -> None:
    loaded = load(run)
    assert loaded.name == "cifarnet/r1"
    assert [(result.system, result.status) for result in loaded.results] == [
        ("baseline", "finished"),
        ("adaptive", "finished"),
    ]
    assert loaded.missing == []
    result = loaded.results[0]
    assert len(result.steps) == STEPS and len(result.evaluations) == 1
    assert result.links["wire_bytes"].sum() == 500 and result.link_bytes == {"a>b": 500}
    assert list(result.events["event"]) == ["exchange", "run-ended"]


def test_without_parquet_the_events_give_the_same(run: Path) -> None:
    before = first(run)
    _ = before.steps, before.links, before.evaluations
    for name in frames.DTYPES:
        (before.folder / f"{name}.parquet").unlink()
    after = first(run)
    assert after.steps.equals(before.steps)
    assert list(after.links["wire_bytes"]) == list(before.links["wire_bytes"])
    assert after.link_bytes == before.link_bytes
    assert "read from events.jsonl" in after.missing[0]


def test_without_events_the_parquet_files_stand(run: Path) -> None:
    (first(run).folder / lines.FILE_NAME).unlink()
    result = first(run)
    assert len(result.steps) == STEPS and result.status == "finished" and result.events.empty
    assert result.missing == ["events.jsonl is missing: single workers and events are not known"]


@pytest.mark.slow
def test_every_place_to_be_killed_at_leaves_a_record_that_loads(run: Path) -> None:
    folder = first(run).folder
    for name in frames.DTYPES:
        (folder / f"{name}.parquet").unlink()
    path = folder / lines.FILE_NAME
    whole = path.read_bytes()
    for size_bytes in range(len(whole) - 1, 0, -37):
        os.truncate(path, size_bytes)
        result = first(run)
        torn = whole[size_bytes - 1 : size_bytes] != b"\n"
        assert result.status == "partial"
        assert any("did not end" in note for note in result.missing)
        assert any("cut off" in note for note in result.missing) == torn
        assert len(result.steps) == whole[:size_bytes].rpartition(b"\n")[0].count(b'"step",')


def test_a_failure_is_told_with_its_error(run: Path) -> None:
    folder = first(run).folder
    with (folder / lines.FILE_NAME).open("ab") as events:
        events.write(lines.encode(RunEnded(time_s=5.0, step=STEPS, how="failed", error="a/w0: out of memory")))
    write_info(folder, ResultInfo(system="baseline", status="failed", error="a/w0: out of memory"))
    assert "it failed: a/w0: out of memory" in first(run).missing and first(run).status == "failed"


def test_an_empty_result_folder_is_a_result_of_which_nothing_is_known(run: Path) -> None:
    folder = run / "terngrad" / "seed-3"
    folder.mkdir(parents=True)
    result = load(run).results[-1]
    assert (result.system, result.seed, result.status) == ("terngrad", 3, "partial")
    assert len(result.steps) == len(result.links) == len(result.evaluations) == 0
    assert list(result.steps.columns) == list(frames.DTYPES["steps"])
    assert result.link_bytes == {}


def test_facts_that_are_lost_are_said_to_be(run: Path) -> None:
    (run / "run.json").write_text('{"target": "cif')
    loaded = load(run)
    assert (loaded.info.target, loaded.info.run_id) == ("cifarnet", "r1")
    assert "the facts of the run are not known" in loaded.missing[0]
    assert len(loaded.results) == 2


def test_a_system_that_was_never_started_is_named(run: Path) -> None:
    write_info(run, RunInfo(systems=["baseline", "adaptive", "gaia"], seeds=[0]))
    assert load(run).missing == ["not started: gaia seed 0"]


def test_damaged_lines_are_counted(run: Path) -> None:
    path = first(run).folder / lines.FILE_NAME
    path.write_bytes(b"\x00garbage\n" + path.read_bytes())
    result = first(run)
    assert len(result.steps) == STEPS
    assert "1 damaged lines of events.jsonl were left out" in result.missing


def test_an_error_says_where_a_run_is(run: Path) -> None:
    with pytest.raises(InputError, match=r"holds 1; the last is .*r1"):
        load(run.parent)
    with pytest.raises(InputError, match=r"near it: .*/r1"):
        load(run.parent / "r11")
    (run.parents[1] / "empty").mkdir()
    with pytest.raises(InputError, match="no run in"):
        load(run.parents[1] / "empty")
