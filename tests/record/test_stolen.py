"""What a hypervisor takes is told apart from what the machine did."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import experiment, start

from testbed.record.info import RunInfo, read_info
from testbed.record.stolen import STAT, Stolen


def test_the_share_is_of_the_time_since_then(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  1000 0 500 9000 0 0 0 700 0 0\ncpu0 1 2 3\n")
    stolen = Stolen(stat)
    assert stolen.share == 0.0
    stat.write_text("cpu  1060 0 510 9010 5 5 0 710 60 0\ncpu0 1 2 3\n")  # a guest's time is the user's, too
    assert stolen.share == pytest.approx(10 / 100)


@pytest.mark.parametrize("text", ["", "cpu  1 2 3 4\n", "cpu  a b c d e f g h\n"])
def test_a_kernel_that_does_not_say_took_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(text)
    assert Stolen(tmp_path / "stat").share == 0.0
    assert Stolen(tmp_path / "nothing").share == 0.0


def test_this_machines_count_is_read() -> None:
    assert sum(Stolen()._times()) > 0 and STAT.is_file()
    assert 0.0 <= Stolen().share <= 1.0


@pytest.mark.slow
def test_a_run_that_measures_says_what_was_taken(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stolen, "share", 0.031)
    notes = {}
    for device in ("measured", "m60"):
        it = experiment(compute={"device": device})
        start(it, tmp_path, folder=tmp_path / device)
        notes[device] = " ".join(read_info(tmp_path / device, RunInfo).notes)
    assert "hypervisor took 3 % of its time" in notes["measured"]
    assert "hypervisor" not in notes["m60"], "a virtual clock does not see it"
