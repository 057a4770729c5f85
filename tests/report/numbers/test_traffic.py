"""Bytes a step, hop by hop (`testbed.report.numbers.traffic`), of real runs on the virtual fabric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_runs import experiment, start

from testbed import Run, load
from testbed.cli import main
from testbed.message import Message
from testbed.report.numbers.summary import is_exchange
from testbed.report.numbers.traffic import traffic
from testbed.roles.node import MARKER
from testbed.workloads.models.base import Model, parameter_count


def played(tmp_path: Path, kind: str) -> Path:
    it = experiment(systems={"baseline": {}, "terngrad": {}}, topology={"kind": kind}, training={"steps": 12})
    return start(it, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_the_bytes_are_the_messages(small_data: None, tmp_path: Path, kind: str) -> None:
    frame = traffic(load(played(tmp_path, kind)))
    gradient = Message("gradient", 9, [np.zeros(parameter_count(Model(name="tiny"), outputs=10), np.float32)]).nbytes
    for hop in frame.columns:
        assert frame.loc["baseline", hop] == pytest.approx(gradient, rel=0.002)  # "sum", "mean"; markers
    assert frame.loc["terngrad", "worker up"] < gradient / 4  # the float last layer is a large part of so small a model
    assert (frame.loc["terngrad", "WAN up"] == frame.loc["terngrad", "worker up"]) == (kind == "flat")


@pytest.mark.slow
def test_the_command_prints_the_table(small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = played(tmp_path, "tree")
    assert main(["bytes", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| system | worker up | of float32 | of baseline | worker down |")
    assert lines[2].split(" | ")[2:4] == ["1.00×", "1.00×"]


def timed(tmp_path: Path, **run: int) -> Path:
    it = experiment(systems={"baseline": {}, "terngrad": {}}, compute={"math": "none"}, training={"steps": 10}, run=run)
    return start(it, tmp_path)


def test_a_run_that_saves_nothing_has_the_bytes_of_its_last_segment(small_data: None, tmp_path: Path) -> None:
    frame = traffic(load(timed(tmp_path / "timed", checkpoint_steps=4)))
    computed = experiment(systems={"baseline": {}, "terngrad": {}}, training={"steps": 10})
    pd.testing.assert_frame_equal(frame, traffic(load(start(computed, tmp_path / "computed"))))


def test_a_run_without_messages_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = timed(tmp_path, checkpoint_steps=10)
    for events in folder.glob("*/*/events.jsonl"):  # as if killed before the first segment was over
        kept = [line for line in events.read_text().splitlines() if '"sent"' not in line]
        events.write_text("".join(line + "\n" for line in kept))
    assert main(["bytes", str(folder)]) == 2
    assert f"{folder}: records no messages; a run does when" in capsys.readouterr().err


@pytest.mark.slow
def test_of_a_run_that_stopped_the_last_whole_segment_counts(small_data: None, tmp_path: Path) -> None:
    def played(name: str, steps: int, **run: object) -> Run:
        return load(start(experiment(systems={"terngrad": {}}, training={"steps": steps}, run=run), tmp_path / name))

    whole = played("whole", 8)
    stopped = played("stopped", 40, probe_steps=2, stop_at_target=True, stop_after_s=0.9)
    assert 8 < stopped.summary["steps"].item() < 40 and stopped.summary["steps"].item() % 4
    last = stopped.results[0].events.query("event == 'checkpointed'")["step"].iloc[-1]
    assert last >= 8
    pd.testing.assert_frame_equal(traffic(stopped), traffic(whole))


@pytest.mark.slow
def test_one_message_of_a_run_that_stopped_is_an_exchange(small_data: None, tmp_path: Path) -> None:
    """Nobody has sent the mark that ends a segment."""
    ends = {"probe_steps": 2, "stop_at_target": True, "stop_after_s": 0.05, "checkpoint_steps": 40}
    once = experiment(systems={"sparseloco": {"local_steps": 8}}, training={"steps": 40}, run=ends)
    run = load(start(once, tmp_path / "once"))
    across = run.results[0].events.query("event == 'sent' and node == 'us-east-2/gs'")
    assert across["messages"].tolist() == [1, 1]
    assert run.summary["exchanged"].item()
    assert not is_exchange(across.assign(nbytes=Message(MARKER, 40).nbytes))
