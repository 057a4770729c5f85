"""One command plays a run at a time, and a lock never outlives those that hold it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import experiment, plain, toml

from testbed.emulation import sandbox
from testbed.errors import InputError
from testbed.fabrics.registry import virtual
from testbed.harness import session, sweep
from testbed.harness.launch import relaunch
from testbed.harness.lock import Held, held, held_too

HOLD = """
import sys
from pathlib import Path
from testbed.harness.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `tmp_path`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_run_is_held_by_one_process_and_the_refusal_says_what_to_do(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    with (
        pytest.raises(Held, match="still going on in another process; wait for its end, or stop it") as refused,
        held(tmp_path),
    ):
        raise AssertionError
    assert refused.value.exit_code == 2 and str(tmp_path) in str(refused.value)


def test_the_lock_of_a_killed_process_is_gone(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.kill()
    holder.wait()
    with held(tmp_path):
        pass


def test_processes_of_one_run_hold_it_together_until_the_last_of_them_ends(tmp_path: Path) -> None:
    with held_too(tmp_path):  # a job, whose command was killed
        with pytest.raises(Held), held(tmp_path):
            raise AssertionError
        with held_too(tmp_path):
            pass
    with held(tmp_path), held_too(tmp_path):  # a command, and a job of it
        pass


def test_a_folder_that_holds_no_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone/run\.lock: cannot be opened: No such file"), held(tmp_path / "gone"):
        raise AssertionError


def test_a_refused_resume_touches_nothing(small_data: None, tmp_path: Path) -> None:
    folder = session.prepare(experiment(), session.Request("test", virtual(), results=tmp_path))
    with held(folder):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(Held):
            relaunch(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.emulation
def test_a_run_that_is_held_outside_a_sandbox_is_held_inside(small_data: None, tmp_path: Path) -> None:
    folder = session.prepare(experiment(), session.Request("test", virtual(), results=tmp_path))
    said: list[str] = []
    with held(folder):
        status = sandbox.run([sys.executable, "-m", "testbed", "run", "--resume", str(folder)], say=said.append)
    assert status == 2 and "still going on in another process" in said[-1]


@pytest.mark.full
@pytest.mark.slow
def test_two_sweeps_at_once_in_one_folder_of_results_are_two_series(tmp_path: Path) -> None:
    """Started in the same second, with two jobs each: neither touches the other's records."""
    path = tmp_path / "mine.toml"
    data = plain(systems={"baseline": {}, "terngrad": {}}, training={"steps": 4})
    path.write_text(toml(data) + '\n[sweep]\n"training.batch_size" = [8, 16]\n')
    command = [sys.executable, "-m", "testbed", "run", str(path), "--out", str(tmp_path / "out"), "--jobs", "2"]
    both = [subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.communicate(timeout=500)[1].count("error") == 0 and process.returncode == 0
    one, two = sorted((tmp_path / "out" / "mine").iterdir())
    assert list(sweep.read(one).points) == list(sweep.read(two).points)
    events = [
        {each.relative_to(folder): each.read_bytes() for each in folder.rglob("events.jsonl")} for folder in (one, two)
    ]
    assert events[0] == events[1] and len(events[0]) == 4
