"""Marks that programs set, through a pipe a host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cli.command_line import main
from testbed.programs import marks
from testbed.record.events import Mark

HOSTS = ["a/h0", "b/h0"]


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(marks, "FOLDER", tmp_path / "marks")
    monkeypatch.setattr(marks.pipe_of, "__defaults__", (tmp_path / "marks",))
    yield tmp_path / "marks"
    assert not list((tmp_path / "marks").iterdir()), "no pipe is left"


def test_a_line_is_a_mark_of_its_host(pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Mark] = []
    with marks.kept(HOSTS, found.append, lambda: 1.5):
        (pipes / "b-h0").write_text("epoch 3\nnot whole")
        monkeypatch.setenv(marks.VARIABLE, str(pipes / "a-h0"))
        assert main(["mark", "a\x1b[1m line\nwith " + "many" * 100]) == 0
    by_host = {mark.node: mark.text for mark in found}
    assert by_host["b/h0"] == "epoch 3"
    assert by_host["a/h0"].startswith("a [1m line with many") and len(by_host["a/h0"]) == marks.LONGEST
    assert all(mark.time_s == 1.5 for mark in found)


def test_more_marks_than_are_kept_are_read_all_the_same(pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST", 10)
    found: list[Mark] = []
    with marks.kept(HOSTS, found.append, lambda: 0.0):
        for number in range(3000):
            with (pipes / "a-h0").open("w") as pipe:
                pipe.write(f"{number}\n")
    assert [mark.text for mark in found] == [str(number) for number in range(10)]


def test_only_a_program_on_the_wan_has_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(marks.VARIABLE, raising=False)
    assert main(["mark", "here"]) == 2
    assert "TESTBED_MARKS is not set" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv(marks.VARIABLE, str(tmp_path / "pipe"))
    assert main(["mark", "here"]) == 2
    assert "nobody reads marks there" in capsys.readouterr().err
