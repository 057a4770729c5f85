"""Emulated runs of which something breaks that no role can see: each ends, says what it was, and closes its record."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_runs import plain, toml

from testbed.fabrics.registry import FABRICS
from testbed.record.reader import Result, load

pytestmark = [pytest.mark.emulation, pytest.mark.slow]

MARK = "TESTBED_TEST_MARK"
STEPS = 100_000
FIXED = {"compute": {"device": "m60", "dilation": 1}, "systems": {"baseline": {}}}
STARTED_S, ENDED_S = 300, 180  # on a busy machine
LONG_TMPDIR = 90  # a socket's path has 107 bytes, and Ray's take some 50 behind the folder


@pytest.fixture(autouse=True, scope="module")
def can_emulate() -> None:
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)


class Run:
    """A run of a few roles that goes on until something ends it."""

    def __init__(self, folder: Path, **run: object) -> None:
        self.temporary = folder / "temporary".ljust(LONG_TMPDIR - len(f"{folder}/"), "_")
        self._out, self._mark = folder / "results", uuid.uuid4().hex
        self.temporary.mkdir()
        file = folder / "small.toml"
        own = {"fabric": "mininet", "gate": False, "checkpoint_steps": STEPS, **run}
        training = {"steps": STEPS, "batch_size": 2}
        topology = {"workers_per_region": 1}
        file.write_text(toml(plain(run=own, topology=topology, training=training, **FIXED)))
        command = [sys.executable, "-m", "testbed", "run", str(file), "--out", str(self._out)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self._mark, "TMPDIR": str(self.temporary)},
        )
        self._wait(lambda: any('"event":"step"' in path.read_text() for path in self._out.glob("*/*/*/*/events.jsonl")))

    def _wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + STARTED_S
        while not condition():
            assert self.process.poll() is None, f"the run ended: {self.process.communicate()}"
            assert time.monotonic() < deadline, "the run did not get that far"
            time.sleep(0.1)

    @property
    def folder(self) -> Path:
        return next(self._out.glob("*/*"))

    def processes(self, words: str) -> list[int]:
        """Processes of this run, whose command lines have these words."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    f"{MARK}={self._mark}".encode() in (path / "environ").read_bytes()
                    and words in (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                ):
                    found.append(int(path.name))
            except OSError:
                continue
        return sorted(found)

    def signal(self, words: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal the newest process with these words in its command line."""
        pid = self.processes(words)[-1]
        os.kill(pid, number)
        return pid

    def ended(self) -> str:
        """What the run says once it has ended, which it does as failed."""
        _, errors = self.process.communicate(timeout=ENDED_S)
        assert self.process.returncode == 1
        (line,) = (line for line in errors.splitlines() if line.startswith("testbed: error: "))
        return line

    def result(self) -> Result:
        (result,) = load(self.folder).results
        return result

    def left(self) -> list[Path]:
        """What lies in the temporary directory, beside PyTorch's cache, which all its programs share."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 20
        while self.processes("") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.processes("") == []
        assert self.left() == []


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run; when the test ends, nothing of it may be left, whatever became of it."""
    runs = []

    def begin(**run: object) -> Run:
        runs.append(Run(tmp_path, **run))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()


def assert_closed(run: Run, line: str) -> None:
    """The record says why, has its table, and the user hears how to go on."""
    result = run.result()
    assert result.status == "failed"
    assert result.info.error and result.info.error in line
    assert len(result.steps)
    assert (run.folder / "summary.csv").is_file()


def assert_closed_from_outside(run: Run, line: str) -> None:
    assert_closed(run, line)
    assert f"--resume {run.folder}" in line


def test_a_rate_that_was_changed_meanwhile_fails_the_run_and_names_the_link(start: Start) -> None:
    run = start(checkpoint_steps=40)
    router = run.processes("mininet:r0 ")[-1]
    change = "class change dev wan1 parent 1: classid 1:1 htb rate 50mbit burst 15k"
    # An ordinary user may change a network that is its own as the root of the namespace that it made for that.
    owner = [f"--user=/proc/{router}/ns/user", "--preserve-credentials"] if os.geteuid() else []
    subprocess.run(["nsenter", *owner, f"--net=/proc/{router}/ns/net", "tc", *change.split()], check=True)
    line = run.ended()
    assert "us-east-2>us-west-1 is shaped to 6250000 bytes/s on the wire, not" in line
    assert_closed(run, line)


@pytest.mark.full
def test_a_stopped_delay_line_is_named_at_once(start: Start) -> None:
    run = start()
    if not run.processes("delayline-"):
        pytest.skip("netem does its work here")
    run.signal("delayline-", signal.SIGSTOP)
    line = run.ended()
    assert "the delay line's process is stopped" in line
    assert_closed(run, line)


@pytest.mark.parametrize(
    ("words", "number", "said"),
    [
        ("raylet/raylet", signal.SIGKILL, "Ray's raylet died"),
        pytest.param("gcs_server", signal.SIGKILL, "Ray's GCS died", marks=pytest.mark.full),
        pytest.param("raylet/raylet", signal.SIGSTOP, "Ray's raylet is stopped", marks=pytest.mark.full),
        pytest.param("gcs_server", signal.SIGSTOP, "Ray's GCS is stopped", marks=pytest.mark.full),
    ],
)
def test_a_part_of_ray_that_died_or_is_stopped_is_named(
    start: Start, words: str, number: signal.Signals, said: str
) -> None:
    run = start()
    run.signal(words, number)
    line = run.ended()
    assert said in line
    assert_closed(run, line)


@pytest.mark.full
def test_an_lps_whose_process_is_killed_is_named(start: Start) -> None:
    run = start()
    (host,) = run.processes("mininet:r1lps ")
    (lps,) = (pid for pid in run.processes("RoleActor") if network_of(host) in networks_of_threads(pid))
    os.kill(lps, signal.SIGKILL)
    line = run.ended()
    assert "us-west-1/lps: its process died" in line
    assert_closed(run, line)


def network_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def networks_of_threads(pid: int) -> set[Path]:
    """A role's sockets are in its host's namespace, where one of its threads opens them."""
    return {(path / "ns/net").readlink() for path in Path(f"/proc/{pid}/task").iterdir()}


def test_a_dead_driver_leaves_a_closed_record(start: Start) -> None:
    run = start()
    run.signal("testbed run --resume")
    line = run.ended()
    assert "the run was killed: its own process (SIGKILL)" in line
    assert_closed_from_outside(run, line)


@pytest.mark.full
def test_a_dead_process_1_leaves_a_closed_record(start: Start) -> None:
    run = start()
    os.kill(run.processes("emulation/init.py")[1], signal.SIGKILL)  # after unshare, which has the same words
    line = run.ended()
    assert "the run was killed: process 1 of its sandbox" in line
    assert_closed_from_outside(run, line)


@pytest.mark.full
def test_a_run_in_which_nothing_happens_any_more_ends_and_says_who_is_stopped(start: Start) -> None:
    run = start(patience_s=10.0)
    for pid in run.processes("RoleActor"):
        os.kill(pid, signal.SIGSTOP)
    line = run.ended()
    assert re.search(r"us-east-2/gs\b.* stopped", line)
    assert_closed(run, line)
