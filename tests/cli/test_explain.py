"""`testbed explain` explains the steps that a record wholly has, and says what it lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_runs import experiment, start

from testbed.cli import main
from testbed.record import lines
from testbed.record.reader import load
from testbed.report.numbers.timeline import chosen


@pytest.fixture
def run(small_data: None, tmp_path: Path) -> Path:
    """The folder of a run, timing-only; three of its steps are recorded event by event."""
    return start(experiment(systems={"baseline": {}}, compute={"math": "none"}), tmp_path)


def cut(run: Path, share: float) -> None:
    """Leave so much of the events."""
    path = run / "baseline" / "seed-0" / lines.FILE_NAME
    os.truncate(path, int(path.stat().st_size * share))


def test_steps_whose_events_are_cut_off_are_not_explained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(run, 0.05)
    assert main(["explain", str(run)]) == 2
    said = capsys.readouterr()
    assert "held by a timer" not in said.out
    assert "no step is there whole: the last line of events.jsonl is cut off" in said.err


def test_what_is_cut_off_is_said_beside_the_steps_that_are_whole(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = chosen(load(run))
    assert len(whole.steps_s) == 3
    cut(run, 0.4)
    it = chosen(load(run))
    assert 0 < len(it.steps_s) < 3 and it.steps_s == whole.steps_s[: len(it.steps_s)]
    assert main(["explain", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the last line of events.jsonl is cut off" in said and "not as long as the run left it" in said


def test_a_damaged_line_ends_what_is_whole(run: Path) -> None:
    path = run / "baseline" / "seed-0" / lines.FILE_NAME
    every = path.read_bytes().splitlines(keepends=True)
    second = next(number for number, line in enumerate(every) if b'"step":1,' in line)
    path.write_bytes(b"".join([*every[:second], every[second][:20] + b"\n", *every[second + 1 :]]))
    assert len(chosen(load(run)).steps_s) == 1
