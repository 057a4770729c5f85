"""A run that was killed and resumed equals the uninterrupted one; a run that is told to stop ends cleanly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_runs import EXCHANGING, experiment, plain, start, toml

from testbed.cli import main
from testbed.errors import InputError, Interrupted
from testbed.experiment.load import from_dict
from testbed.experiment.schema import Experiment
from testbed.harness import session as run
from testbed.harness.launch import relaunch
from testbed.harness.play import MODEL_FILE, Play
from testbed.record.events import Checkpointed, Event, StepDone
from testbed.record.info import ResultInfo, RunInfo, environment, read_info, write_info
from testbed.record.recorder import Recorder

SYSTEMS: dict[str, dict[str, Any]] = {"baseline": {}, "terngrad": {}, "weightgrad": EXCHANGING}
STEPS, EVERY = 12, 4


def one(system: str) -> Experiment:
    training = {"steps": STEPS, "optimizer": {"kind": "sgd", "momentum": 0.9}, "ema_decay": 0.9}
    return experiment(systems={system: SYSTEMS[system]}, training=training, run={"checkpoint_steps": EVERY})


def resume(folder: Path) -> None:
    run.ready(folder, jobs=1)()


def events(folder: Path) -> list[str]:
    """The lines of the only system's events."""
    [path] = folder.glob("*/seed-0/events.jsonl")
    return path.read_text().splitlines()


def assert_same(folder: Path, whole: Path, system: str) -> None:
    assert events(folder) == events(whole)
    there, here = (np.load(each / system / "seed-0" / MODEL_FILE) for each in (whole, folder))
    assert there.files == here.files
    assert all(there[name].tobytes() == here[name].tobytes() for name in there.files)
    for frame in ("steps", "links", "evaluations"):
        name = f"{system}/seed-0/{frame}.parquet"
        pd.testing.assert_frame_equal(pd.read_parquet(folder / name), pd.read_parquet(whole / name), check_exact=True)
    assert read_info(folder / system / "seed-0", ResultInfo).status == "finished"
    assert not list(folder.rglob("checkpoint-*"))


class Snapshots:
    """Copies a run's folder when chosen events have been written, and before it has tables: what `kill -9` would have
    left at that instant.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, into: Path) -> None:
        self.into = into
        self.taken: list[Path] = []
        record, finish = Recorder.record, Recorder.finish

        def recorded(recorder: Recorder, event: Event) -> None:
            record(recorder, event)
            if self.chosen(event):
                self.take(recorder)

        def finished(recorder: Recorder) -> dict[str, str]:
            self.take(recorder)
            return finish(recorder)

        monkeypatch.setattr(Recorder, "record", recorded)
        monkeypatch.setattr(Recorder, "finish", finished)

    def take(self, recorder: Recorder) -> None:
        copy = self.into / str(len(self.taken))
        shutil.copytree(recorder.folder.parents[1], copy)
        self.taken.append(copy)

    @staticmethod
    def chosen(event: Event) -> bool:
        """In the middle of a segment, and between recording the first and last checkpoint and putting it in place."""
        in_the_middle = isinstance(event, StepDone) and event.step == 6 and event.node == "us-east-1/w1"
        return in_the_middle or (isinstance(event, Checkpointed) and event.step != 8)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_killed_at_any_time_and_resumed(
    small_data: None, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        snapshots = Snapshots(patch, tmp_path / "killed")
        whole = start(one(system), tmp_path / "whole")
    assert len(snapshots.taken) == 4
    if system == "weightgrad":
        assert sum('"exchange"' in line for line in events(whole)) >= 3
    for folder in snapshots.taken:
        if folder != snapshots.taken[-1]:  # in which all is written but the tables
            with next(folder.glob("*/seed-0/events.jsonl")).open("ab") as file:
                file.write(b'{"event":"step","time_s":0.1')  # the line it was killed in
        resume(folder)
        assert_same(folder, whole, system)


@pytest.mark.slow
def test_what_was_discarded_is_kept_aside(small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        snapshots = Snapshots(patch, tmp_path / "killed")
        start(one("baseline"), tmp_path / "whole")
    folder = snapshots.taken[1]  # in the middle of the second segment
    resume(folder)
    discarded = (folder / "baseline/seed-0/events.discarded.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in discarded if '"step"' in line} >= {EVERY, EVERY + 1, EVERY + 2}


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(small_data: None, tmp_path: Path) -> None:
    folder = start(one("baseline"), tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.json"}
    resume(folder)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_a_finished_system_with_damaged_facts_is_not_played_again(small_data: None, tmp_path: Path) -> None:
    """It used to be taken for one that had not begun, and its events for ones to be discarded."""
    folder = start(one("baseline"), tmp_path)
    before, facts = events(folder), folder / "baseline/seed-0/run.json"
    facts.write_text(facts.read_text().replace('"finished"', '"finishes"'))
    with pytest.raises(InputError, match=r"baseline/seed-0/run\.json: not as it was written"):
        resume(folder)
    facts.unlink()  # its events say how it ended
    resume(folder)
    assert events(folder) == before


@pytest.mark.slow
def test_only_what_is_missing_is_run(small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = experiment(run={"seeds": [0, 1]}, systems={"baseline": {}, "terngrad": {}})
    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "chosen", staticmethod(lambda event: isinstance(event, StepDone) and event.step == 6))
        snapshots = Snapshots(patch, tmp_path / "killed")
        start(it, tmp_path / "whole")
    folder = snapshots.taken[11]  # each of 4 workers, and the end, of a system: in the third of four
    assert [path.name for path in sorted(folder.glob("*/seed-*/model.npz"))] == ["model.npz"] * 2
    begun: list[str] = []
    original = Play._segments
    monkeypatch.setattr(Play, "_segments", lambda play, last: (begun.append(play.system), original(play, last)))
    resume(folder)
    assert begun == ["baseline", "terngrad"]
    assert len(list(folder.glob("*/seed-*/model.npz"))) == 4


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_can_be_resumed(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start(one("weightgrad"), tmp_path / "whole")
    original = Recorder.record

    def interrupt(recorder: Recorder, event: Event) -> None:
        original(recorder, event)
        if isinstance(event, StepDone) and event.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    folder = run.prepare(one("weightgrad"), run.Request("test", "virtual", results=tmp_path / "cut"))
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "record", interrupt)
        says = r"the last checkpoint of weightgrad is at step 4 of 12; go on with .*testbed run --resume .*-virtual"
        with pytest.raises(Interrupted, match=says):
            resume(folder)
    info = read_info(folder / "weightgrad/seed-0", ResultInfo)
    assert (info.status, info.error) == ("interrupted", "stopped by a signal")
    assert len(pd.read_parquet(folder / "weightgrad/seed-0/steps.parquet")) >= 6
    relaunch(folder, jobs=1)
    assert_same(folder, whole, "weightgrad")


def test_the_handlers_of_signals_are_put_back(small_data: None, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    start(one("baseline"), tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before


# Real processes

LONG = plain(
    systems={"weightgrad": {**EXCHANGING, "rate": 0.002}},
    training={"steps": 800},
    run={"checkpoint_steps": 50, "eval_images": 50},
)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts `testbed run` on a long experiment and waits until it is in the middle of a segment."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "long.toml").write_text(toml(LONG))
    environment = {**os.environ, "TESTBED_DATA": str(folder / "data")}
    processes = []

    def begin(out: str) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-m", "testbed", "run", str(folder / "long.toml"), "--out", str(folder / out)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
        )
        processes.append(process)
        pattern = f"{out}/long/*/weightgrad/seed-0"
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            for path in folder.glob(pattern):
                if list(path.glob("checkpoint-*[0-9]/clock.json")):
                    time.sleep(0.3)
                    return process, path.parents[1]
            time.sleep(0.02)
        raise AssertionError(f"no checkpoint: {process.communicate()}")

    yield begin
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_signal_ends_a_run_with_a_partial_summary(long_run: Any, number: signal.Signals) -> None:
    process, folder = long_run(number.name)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    typed = folder.relative_to(folder.parents[2])  # in the folder that it was started in
    assert f"testbed run --resume {typed}" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert "summary.md" in stdout
    summary = pd.read_csv(folder / "summary.csv")
    assert 50 <= summary.steps[0] < 800
    assert (folder / "comparison.png").stat().st_size > 0


@pytest.mark.full
@pytest.mark.slow
def test_kill_9_and_resume(long_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process, folder = long_run("killed")
    process.kill()
    process.communicate()
    monkeypatch.setenv("TESTBED_DATA", str(folder.parents[2] / "data"))
    resume(folder)
    whole = start(from_dict(LONG, "long"), folder.parents[2] / "whole")
    assert_same(folder, whole, "weightgrad")


@pytest.mark.slow
def test_a_run_that_goes_on_at_another_commit_says_so(small_data: None, tmp_path: Path) -> None:
    """Once, however often it is resumed."""
    folder = run.prepare(one("baseline"), run.Request("test", "virtual", results=tmp_path))
    facts = read_info(folder, RunInfo)
    facts.environment.commit = "0" * 40
    write_info(folder, facts)
    run.ready(folder, jobs=1)
    resume(folder)
    notes = [note for note in read_info(folder, RunInfo).notes if note.startswith("It began at commit 0000000000 and")]
    assert len(notes) == (1 if environment().commit else 0)


@pytest.mark.slow
def test_a_live_run_is_neither_resumed_nor_cleaned(long_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Both used to hurt it: one took steps from its record, the other the checkpoint it was writing."""
    process, folder = long_run("live")
    process.send_signal(signal.SIGSTOP)  # it lives, and cannot come to its end before it was asked about twice
    half = folder / "weightgrad/seed-0/checkpoint-9.tmp"
    half.mkdir()
    assert main(["run", "--resume", str(folder)]) == 2
    refused = capsys.readouterr()
    assert refused.err == (
        f"testbed: error: {folder}: this run is still going on in another process; wait for its end, or stop it there "
        "with Ctrl-C\n"
    )
    assert refused.out == ""
    assert main(["clean", "--out", str(folder.parents[1])]) == 0
    assert capsys.readouterr().out == f"skipped {folder}: this run is still going on\n"
    assert process.poll() is None and half.is_dir()
    process.kill()
    process.communicate()
    assert main(["clean", "--out", str(folder.parents[1])]) == 0  # the lock went with it
    assert f"deleted {half}\n" in capsys.readouterr().out
    assert not (folder / "weightgrad/seed-0/events.discarded.jsonl").exists()
