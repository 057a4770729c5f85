"""However a run ends, its last line says what became of its record, and what to type next."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from small_runs import experiment, plain, start, toml

from testbed.cli import main
from testbed.harness import launch, session
from testbed.record import lines, reader
from testbed.record.events import Event, StepDone
from testbed.record.info import FILE_NAME
from testbed.record.recorder import Recorder

pytestmark = pytest.mark.usefixtures("small_data")


def taking_away(monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], None]) -> None:
    """Have `take` do something to the folder of a system and seed in the middle of its second segment."""
    record = Recorder.record

    def recorded(recorder: Recorder, event: Event) -> None:
        record(recorder, event)
        if isinstance(event, StepDone) and event.step == 5 and recorder.folder.is_dir():
            take(recorder.folder)

    monkeypatch.setattr(Recorder, "record", recorded)


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.slow), ["--timing-only"]], ids=str)
@pytest.mark.parametrize("what", ["events", "run"])
def test_files_that_are_taken_away_while_a_run_goes_on_end_it_in_one_line(
    what: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(toml(plain(systems={"baseline": {}})))
    if what == "events":
        taking_away(monkeypatch, lambda folder: (folder / lines.FILE_NAME).unlink())
    else:
        taking_away(monkeypatch, lambda folder: shutil.rmtree(folder.parents[1]))
    assert main(["run", "mine.toml", "--fabric", "virtual", "--quiet", *options]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("testbed: error: ") and "taken away while" in last and str(tmp_path) in last
    assert not [*Path("results").rglob("*.parquet")], "nothing says that it has ended"
    assert not [*Path("results").rglob("report.html")] or what == "events"


def test_a_run_that_would_last_for_years_ends_and_what_it_recorded_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(toml(plain(systems={"baseline": {}})))
    years = ["--set", "topology.wan_factor=1e-300"]
    assert main(["run", "mine.toml", "--fabric", "virtual", "--quiet", "--timing-only", *years]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("testbed: error: after ") and "no run lasts 1e+07 s" in last
    [folder] = Path("results").glob("*/*")
    [result] = reader.load(folder).results
    assert result.status == "failed" and not len(result.links)


@pytest.mark.parametrize("series", [[], ["--sweep", "training.batch_size=16,32"]], ids=["run", "series"])
def test_a_run_that_is_stopped_between_two_plays_says_the_command_that_goes_on(
    series: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_report", stop)
    Path("mine.toml").write_text(toml(plain(systems={"baseline": {}, "terngrad": {}})))
    monkeypatch.setattr(session, "ready", lambda *arguments: lambda: None)
    assert main(["run", "mine.toml", "--fabric", "virtual", "--timing-only", *series]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"testbed: error: stopped: 0 of \d over; resume with testbed run --resume results/mine/\S+", last
    )


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")], ids=["removed", "cut"])
def test_a_run_without_its_facts_does_not_go_on_and_is_still_reported(
    damage: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = start(experiment(systems={"baseline": {}}, compute={"math": "none"}), tmp_path)
    damage(folder / FILE_NAME)
    assert main(["run", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "run.json: " in said and said.endswith(f"testbed report {folder}\n")
    assert main(["report", str(folder)]) == 0
    assert "the facts of the run are not known" in capsys.readouterr().out
