"""Training that diverges ends its own system and seed, and nothing else; what is resumed does not play it again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_runs import experiment, plain, start, toml

from testbed.cli import main
from testbed.harness import apart, checkpoint, not_finite, session
from testbed.harness.not_finite import Diverged
from testbed.harness.play import Play, place_of
from testbed.record.info import NOT_FINITE, ResultInfo, RunInfo, read_info

WILD: dict[str, Any] = {"fp16": {"rate": 1e6}, "baseline": {}}


def statuses(folder: Path) -> dict[str, str]:
    places = sorted(folder.glob("*/seed-*"))
    return {str(place.relative_to(folder)): read_info(place, ResultInfo).status for place in places}


ENDED = {"baseline/seed-0": "finished", "fp16/seed-0": "failed"}
BOTH = ENDED | {"baseline/seed-1": "finished", "fp16/seed-1": "failed"}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plays that have begun, as they do."""
    names: list[str] = []
    original = Play._segments
    monkeypatch.setattr(
        Play, "_segments", lambda play, last: (names.append(f"{play.system}/{play.seed}"), original(play, last))
    )
    return names


def test_what_diverges_holds_up_nothing_and_is_not_played_again(
    small_data: None, tmp_path: Path, begun: list[str]
) -> None:
    it = experiment(systems=WILD, run={"seeds": [0, 1], "checkpoint_steps": 1})
    with pytest.raises(Diverged, match=r"training diverged in fp16/seed-0, fp16/seed-1 \(.* NaN or infinity") as error:
        start(it, tmp_path)
    assert not getattr(error.value, "__notes__", None), "its line says all, without a traceback"
    [folder] = (tmp_path / "test").iterdir()
    assert statuses(folder) == BOTH and not list(folder.rglob("checkpoint-*"))
    assert begun == ["fp16/0", "baseline/0", "fp16/1", "baseline/1"]
    for jobs in (1, 2):
        with pytest.raises(Diverged, match=r"training diverged in fp16/seed-0, fp16/seed-1 \("):
            session.ready(folder, jobs)()
    assert len(begun) == 4


@pytest.mark.slow
def test_a_record_that_diverged_and_stopped_there_goes_on_with_the_rest(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[str]
) -> None:
    """As earlier versions left them, with the last checkpoint."""
    folder = session.prepare(experiment(systems=WILD), session.Request("test", "virtual", results=tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(session, "passed_over", nullcontext)
        with pytest.raises(Exception, match="NaN or infinity"):
            session.ready(folder, jobs=1)()
    kept = place_of(folder, "fp16", 0) / "checkpoint-1"
    kept.mkdir()
    (kept / checkpoint.CLOCK).write_text('{"step": 1, "clock_s": 0.1}')
    with pytest.raises(Diverged):
        session.ready(folder, jobs=1)()
    assert statuses(folder) == ENDED and begun == ["fp16/0", "baseline/0"] and not kept.exists()


@pytest.mark.full
@pytest.mark.slow
def test_in_processes_of_their_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path / "data"))  # the whole stand-in: other processes read it, too
    with pytest.raises(Diverged, match=r"training diverged in fp16/seed-0, fp16/seed-1 \("):
        start(experiment(systems=WILD, run={"seeds": [0, 1]}), tmp_path, jobs=2)
    [folder] = (tmp_path / "test").iterdir()
    assert statuses(folder) == BOTH


@pytest.mark.slow
def test_a_series_goes_on_to_its_last_run(
    small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], begun: list[str]
) -> None:
    """A system that is played once for several runs stands for them also where it diverged."""
    path = tmp_path / "mine.toml"
    path.write_text(toml(plain(systems=WILD)))
    swept = ["--sweep", "systems.baseline.rate=1e6,0.02", "--jobs", "1", "--quiet"]
    assert main(["run", str(path), "--out", str(tmp_path / "out"), *swept]) == 1
    [folder] = (tmp_path / "out" / "mine").iterdir()
    said = capsys.readouterr().err.splitlines()
    assert "training diverged in baseline.rate=1000000.0/fp16/seed-0, " in said[-1]
    assert ", baseline.rate=0.02/fp16/seed-0 (" in said[-1]
    assert not any("Traceback" in line or line.startswith("resume:") for line in said)
    assert statuses(folder / "baseline.rate=0.02") == ENDED
    assert begun == ["fp16/0", "baseline/0", "baseline/0"]
    assert len(pd.read_csv(folder / "summary.csv")) == 4
    assert main(["run", "--resume", str(folder), "--quiet"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == said[-1], "what is not played again is told again"
    assert len(begun) == 3


def test_a_play_that_diverged_in_a_testbed_of_its_own_is_over_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = experiment(systems={"fp16": {}}).as_dict()
    place, facts = place_of(tmp_path, "fp16", 0), RunInfo(fabric="mininet", experiment=it)
    place.mkdir(parents=True)

    class Kind:
        virtual_time = False

        @staticmethod
        def enter(command: Any, say: Any, killed: Any) -> int:
            (place / "run.json").write_text(f'{{"status": "failed", "error": "w0 failed: layer a{NOT_FINITE}"}}')
            return 1

    monkeypatch.setattr(apart.FABRICS, "find", lambda name: Kind)
    assert apart.played(place, it, facts, "fp16", 0)
    assert not_finite.diverged([place]) == [place] and (place / apart.FILE_NAME).is_file()
