"""The fork server: what Ray starts as its worker is a fork, everything else is Python as ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import experiment

from testbed.fabrics.actors.forkserver import ForkServer

SAYS = """
import json, os, sys
seen = {"argv": sys.argv, "pid": os.getpid(), "parent": os.getppid(), "FOO": os.environ.get("FOO"), "cwd": os.getcwd()}
seen |= {"line": sys.stdin.readline(), "name": __name__, "warm": "testbed.fabrics.actors.actor" in sys.modules}
seen |= {"threads": len(os.listdir("/proc/self/task"))}
print(json.dumps(seen), flush=True)
print("to the log", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    folder = tmp_path_factory.mktemp("s")
    made = ForkServer(folder, experiment().as_dict())
    made.wait()
    yield made
    made.close()


def started(server: ForkServer, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with server.in_place_of_python():
        line = [sys.executable, str(script), *arguments]
    environment = {**os.environ, "FOO": "bar"}
    return subprocess.run(
        line,
        input="a line\n",
        env=environment,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def script(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(SAYS)
    return path


@pytest.mark.slow
def test_a_worker_is_a_warm_fork_with_its_own_arguments_environment_and_streams(server: ForkServer, tmp_path: Path):
    worker = script(tmp_path, "default_worker.py")
    given = ("--node-id=7", "--serialized-runtime-env-context={}", "--language=PYTHON")
    one, other = (started(server, worker, *given) for _ in "12")
    seen = json.loads(one.stdout)
    assert seen["warm"] and seen["threads"] == 1
    assert (seen["argv"], seen["name"], seen["FOO"]) == ([str(worker), "--node-id=7"], "__main__", "bar")
    assert (seen["cwd"], seen["line"], one.stderr) == (str(tmp_path), "a line\n", "to the log\n")
    assert json.loads(other.stdout)["pid"] != seen["pid"]
    assert seen["parent"] != server._process.pid, "who waits for it is process 1"


@pytest.mark.slow
def test_what_is_no_worker_is_python(server: ForkServer, tmp_path: Path):
    seen = json.loads(started(server, script(tmp_path, "agent.py"), "--x").stdout)
    assert not seen["warm"] and seen["argv"][1:] == ["--x"]


@pytest.mark.slow
def test_without_the_server_a_worker_starts_as_ray_does_it(tmp_path: Path):
    gone = ForkServer(tmp_path, {"no": "experiment"})
    gone.wait()  # it has ended: there is nothing to prepare
    seen = json.loads(started(gone, script(tmp_path, "default_worker.py")).stdout)
    assert not seen["warm"]
    gone.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["monitor.py", "log_monitor.py"])
def test_what_nobody_asks_of_ray_waits_without_importing_anything(server: ForkServer, tmp_path: Path, name: str):
    with server.in_place_of_python():
        line = [sys.executable, "-u", str(script(tmp_path, name))]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.stdout is not None and process.stdout.read() == b""
    assert process.returncode == -signal.SIGTERM
