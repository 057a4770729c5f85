"""What a script or a notebook does: run, look, compare; the same bits as from the command line."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from small_runs import PLAIN, plain, toml

import testbed
from testbed.errors import Interrupted
from testbed.experiment.load import load
from testbed.harness import session, sweep
from testbed.record.info import RunInfo, read_info
from testbed.record.lines import FILE_NAME as EVENTS

pytestmark = pytest.mark.slow

FEW = plain(systems={"baseline": {}, "terngrad": {}})


def run(tmp_path: Path, experiment: Any = FEW, **more: Any) -> Any:
    return testbed.run(experiment, out=tmp_path, jobs=1, say=lambda line: None, **more)


def events(of: testbed.Run) -> dict[str, bytes]:
    return {result.system: (result.folder / EVENTS).read_bytes() for result in of.results}


def test_a_run_is_frames_and_pictures(small_data: None, tmp_path: Path) -> None:
    played = run(tmp_path, set={"training.steps": 6}, seeds=[0, 1])
    assert isinstance(played, testbed.Run)
    assert list(played.summary["system"]) == ["baseline", "baseline", "terngrad", "terngrad"]
    assert set(zip(played.steps["system"], played.steps["seed"], strict=True)) == {
        (system, seed) for system in ("baseline", "terngrad") for seed in (0, 1)
    }
    assert len(played.steps) == 4 * 6
    assert played.links["wire_bytes"].gt(0).all()
    assert {"loss", "accuracy"} <= set(played.evaluations)
    assert "checkpointed" in set(played.events["event"])
    assert isinstance(played.plot("loss"), Figure)
    assert played.report(tmp_path / "page.html").stat().st_size > 10_000
    page = played._repr_html_()
    assert "<table" in page and "data:image/png;base64," in page and "terngrad" in page


def test_all_ways_to_name_an_experiment_are_one(small_data: None, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(FEW))
    by_dict = run(tmp_path)
    by_path = run(tmp_path, path)
    by_value = run(tmp_path, testbed.api.load_experiment(FEW)[0].experiment)
    assert events(by_dict) == events(by_path) == events(by_value)
    assert by_path.info.target == "mine"
    assert run(tmp_path, FEW, name="other").info.target == "other"


def test_what_is_asked_for_changes_the_experiment(small_data: None, tmp_path: Path) -> None:
    played = run(tmp_path, systems="onebit", seeds=np.int64(3), set={"training.steps": 4}, fabric="virtual")
    assert [(result.system, result.seed, result.info.steps) for result in played.results] == [("onebit", 3, 4)]
    with pytest.raises(testbed.InputError, match=r"^set training\.stepz: unknown key; did you mean 'training\.steps'?"):
        run(tmp_path, set={"training.stepz": 4})


def test_runs_are_loaded_and_compared(small_data: None, tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path, systems=["baseline", "onebit"])
    again = testbed.load(first.folder)
    pd.testing.assert_frame_equal(again.summary, first.summary)
    found = testbed.compare([first, second.folder], over=["terngrad"])
    assert set(found.frame["system"]) == {"baseline", "terngrad", "onebit"}
    with pytest.raises(testbed.InputError, match="the same run is given twice"):
        testbed.compare([first, first.folder])
    for one in (first, first.folder, str(first.folder)):
        assert list(testbed.compare(one, over="terngrad").frame["run"].unique()) == [first.name]


@pytest.mark.full
def test_a_sweep_is_a_series(small_data: None, tmp_path: Path) -> None:
    series = run(tmp_path, {**FEW, "sweep": {"training.batch_size": [8, 16]}}, systems=["baseline"])
    assert isinstance(series, testbed.Series)
    assert series.labels == ["batch_size=8", "batch_size=16"] == list(series.summary["point"])
    assert [each.info.experiment["training"]["batch_size"] for each in series] == [8, 16]
    assert len(testbed.load(series.folder)) == 2
    assert "2 runs" in series._repr_html_()


def test_a_series_that_was_stopped_has_the_runs_that_have_begun(small_data: None, tmp_path: Path) -> None:
    points = load({**FEW, "sweep": {"training.batch_size": [8, 16, 32]}}, systems=["baseline"])
    request = session.Request("mine", "virtual", results=tmp_path)
    folder = sweep.begin(points, request, tmp_path / "mine")
    with pytest.raises(testbed.InputError, match="none of its runs has begun; testbed run --resume"):
        testbed.load(folder)
    played: list[Path] = []

    def stop(place: Path, play: Callable[[], None]) -> None:
        if len(played) == 2:
            raise Interrupted("stopped")
        play()
        played.append(place)

    with pytest.raises(Interrupted):
        sweep.play(folder, 1, stop)
    shutil.rmtree(folder / "batch_size=32")  # prepared before it is played
    found = testbed.load(folder)
    assert isinstance(found, testbed.Series)
    assert found.labels == ["batch_size=8", "batch_size=16"] == list(found.summary["point"])
    assert found.missing == ["batch_size=32 has not begun."] and found.missing[0] in found._repr_html_()
    assert len(testbed.compare([found], force=True).frame) == 2


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(testbed.InputError, match="nothing: no run to compare"):
        testbed.compare([])


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"jobs": 0}, "jobs is 0: it must be a whole number from 1"),
        ({"jobs": "2"}, "jobs is '2': it must be a whole number from 1"),
        ({"seeds": "12"}, r"seeds has '12': a seed is a whole number, e\.g\. seeds=\[0, 1\]"),
        ({"seeds": True}, "seeds has True: a seed"),
        ({"seeds": 1.5}, r"seeds has 1\.5: a seed"),
        ({"seeds": [0, 0.9]}, r"seeds has 0\.9: a seed"),
        ({"seeds": ["a"]}, "seeds has 'a': a seed"),
        ({"faults": ["cut a=b at 1s", "boom"]}, r"^faults\[1\]: unknown kind of fault 'boom'"),
        ({"trace": "outagee"}, r"^trace topology\.trace: no trace 'outagee'; did you mean 'outage'"),
        ({"storage": "/tmp"}, "storage is for a cluster's nodes: it goes with ray"),
        ({"ray": "auto", "jobs": 2}, "give either jobs or ray"),
    ],
)
def test_arguments_that_would_change_nothing_are_refused(tmp_path: Path, asked: dict[str, Any], line: str) -> None:
    with pytest.raises(testbed.InputError, match=line):
        testbed.run(FEW, out=tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_where_a_loop_runs_already_the_bits_are_the_same(small_data: None, tmp_path: Path) -> None:
    async def cell() -> Any:  # as a notebook runs one
        return run(tmp_path / "inside")

    assert events(asyncio.run(cell())) == events(run(tmp_path / "outside"))


def test_an_interrupt_ends_it_cleanly_where_a_loop_runs(small_data: None, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not any('"step"' in path.read_text() for path in tmp_path.rglob(EVENTS)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> Any:
        return run(tmp_path, set={"training.steps": 20_000}, systems=["baseline"])

    threading.Thread(target=interrupt, daemon=True).start()
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(Interrupted, match="testbed run --resume"):
            loop.run_until_complete(cell())
    finally:
        loop.close()
    [folder] = (tmp_path / "experiment").iterdir()
    assert [result.status for result in testbed.load(folder).results] == ["interrupted"]
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_importing_it_is_quick() -> None:
    """Nothing of what takes time to import is imported before it is used."""
    heavy = ("torch", "numpy", "pandas", "matplotlib", "numba", "ray", "msgspec")
    code = f"import sys, testbed; assert not set({heavy}) & set(sys.modules), sorted(set({heavy}) & set(sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in testbed._HOME:
        thing = getattr(testbed, name)
        assert name in dir(testbed)
        assert getattr(thing, "__doc__", None), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = testbed.nothing


def test_a_picture_changes_no_settings(small_data: None, tmp_path: Path) -> None:
    before = dict(dict.items(matplotlib.rcParams))  # not through the mapping, which chooses a backend when it is asked
    run(tmp_path, systems=["baseline"]).plot("loss")
    assert dict(dict.items(matplotlib.rcParams)) == before, "a notebook's own settings and backend stay as they are"


SCRIPT = """
import sys
import testbed

{guard}played = testbed.run({experiment!r}, systems={systems!r}, out=sys.argv[1], jobs={jobs})
{guard}print([result.status for result in played.results])
"""

MINE = """
import testbed
from testbed.codecs import Half

class Mine(testbed.CodecSystem):
    name = "mine"
    def codec(self, sender):
        return Half(self.task.layout)
"""


def played_script(
    folder: Path, guard: str, jobs: int, own: str = MINE, other: str = "mine"
) -> subprocess.CompletedProcess[str]:
    """Run what a script defines of its `own`, then the baseline and an `other` system, in a process of its own."""
    script = folder / "script.py"
    playing = SCRIPT.format(guard=guard, experiment=PLAIN, systems=["baseline", other], jobs=jobs)
    script.write_text(own + playing)
    command = [sys.executable, str(script), str(folder / "out")]
    environment = {**os.environ, "TESTBED_DATA": str(folder / "data")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_scripts_own_system_is_known_to_its_jobs(tmp_path: Path, jobs: int) -> None:
    done = played_script(tmp_path, 'if __name__ == "__main__": ', jobs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['finished', 'finished']"
    [folder] = (tmp_path / "out" / "experiment").iterdir()
    assert read_info(folder, RunInfo).experiment["plugins"] == [str(tmp_path / "script.py")]


@pytest.mark.full
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    done = played_script(tmp_path, "", 2)
    assert done.returncode != 0
    assert 'put what runs under `if __name__ == "__main__":`' in done.stderr


def test_a_script_that_defines_nothing_needs_no_guard_and_is_no_plugin(tmp_path: Path) -> None:
    """Else what it is called, and each edit of it, would be a part of what was run."""
    done = played_script(tmp_path, "", 2, own="", other="terngrad")
    assert done.stdout.splitlines()[-1:] == ["['finished', 'finished']"], done.stderr
    [folder] = (tmp_path / "out" / "experiment").iterdir()
    facts = read_info(folder, RunInfo)
    assert facts.plugins == [] and "plugins" not in facts.experiment
    assert facts.command[0] == str(tmp_path / "script.py")


def test_what_only_a_notebook_knows_is_not_emulated(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testbed import plugins
    from testbed.fabrics.registry import FABRICS

    monkeypatch.setattr(FABRICS["mininet"], "cannot_run_here", lambda: "")
    monkeypatch.setattr(plugins, "interactive", lambda: plugins.Interactive(("system 'mine'",), ""))
    with pytest.raises(testbed.InputError, match=r"system 'mine': known to this notebook only.*%%writefile mine\.py"):
        run(tmp_path, fabric="mininet")
    assert run(tmp_path, fabric="virtual", systems=["baseline"]).results[0].status == "finished"
