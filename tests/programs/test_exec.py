"""Programs of others on the emulated WAN: they see its rates and delays, and nothing of them is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from exec_runs import BACK, FORTH, TWO, ended, start_exec

from testbed.emulation import sandbox
from testbed.message import PAYLOAD_PER_WIRE

pytestmark = pytest.mark.emulation

ORDINARY_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
SERVE = (
    "import socket; s = socket.create_server(('', 8080)); "
    "[(c.sendall(bytes(200000)), c.close()) for c, _ in iter(s.accept, None)]"
)
ASK = (
    "import socket; s = socket.create_connection(('us-east-1', 8080)); "
    "print('served', sum(len(p) for p in iter(lambda: s.recv(65536), b'')))"
)
WEB = f"""
[[start]]
hosts = "us-east-1"
run = ["{sys.executable}", "-c", "import time; time.sleep(2); {SERVE}"]
ready = "port 8080"
service = true
[[start]]
hosts = "us-west-1"
run = ["sh", "-c", 'echo asked > $TESTBED_MARKS; exec {sys.executable} -c "$ASK"']
environment = {{ ASK = "{ASK}" }}
[[start]]
hosts = "us-west-1"
run = "sleep 3"
"""


def readable_python() -> str:
    """An interpreter of this version that an ordinary user may run; this one may lie in root's home."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        may = f"import os, sys; sys.exit(not os.access({python!r}, os.X_OK))"
        if Path(python).exists() and not subprocess.run([*ORDINARY_USER, python, "-c", may], check=False).returncode:
            return python
    pytest.skip("an ordinary user cannot read this interpreter")


def still_there(mark: str) -> list[str]:
    """Processes of this machine whose command line has `mark`."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if mark in line and str(os.getpid()) not in line.split()[:1]]


@pytest.fixture(autouse=True, scope="module")
def _emulation() -> None:
    if reason := sandbox.available():
        pytest.skip(reason)


def test_each_host_is_told_its_place_and_finds_the_others(tmp_path: Path) -> None:
    script = "echo $RANK of $WORLD_SIZE; hostname; getent hosts us-east-1-h0 us-west-1 | tr -s ' '; exit 0"
    status, out, err = ended(start_exec(tmp_path / "x", TWO, "sh", "-c", script))
    assert status == 0, err
    assert {line for line in out.splitlines() if " | " in line and line.startswith("us-")} == {
        f"us-{region}-1-h0 | {line}"
        for region, rank in (("west", 0), ("east", 1))
        for line in (f"{rank} of 2", f"us-{region}-1-h0", "10.2.0.2 us-east-1-h0", "10.1.0.2 us-west-1")
    }
    assert (tmp_path / "x/logs/us-west-1-h0.log").read_text().startswith("0 of 2\n")
    facts = json.loads((tmp_path / "x/exec.json").read_text())
    assert facts["statuses"] == {"us-west-1/h0": 0, "us-east-1/h0": 0}
    assert f"| {FORTH} |" in (tmp_path / "x/summary.md").read_text()


def test_clients_start_when_their_server_listens_and_a_port_is_published(tmp_path: Path) -> None:
    (tmp_path / "web.toml").write_text(WEB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--start", str(tmp_path / "web.toml"), "--publish", f"us-east-1:8080={port}")
    process = start_exec(tmp_path / "x", TWO, options=options)
    assert process.stdout is not None
    while "served 200000" not in (line := process.stdout.readline()):
        assert line, "it ended without having been answered"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(10)
        received = sum(len(part) for part in iter(lambda: connection.recv(65536), b""))
    assert received == 200_000, "the same server, from outside"
    status, _, err = ended(process)
    assert status == 0, err
    facts = json.loads((tmp_path / "x/exec.json").read_text())
    assert facts["told"] == ["us-east-1/h0"] and facts["statuses"]["us-west-1/h0.2"] == 0
    assert 200_000 < facts["wan_bytes"][BACK] < 230_000, "what is published crosses no link"
    assert "on us-west-1-h0: asked" in (tmp_path / "x/summary.md").read_text()
    assert {path.name for path in (tmp_path / "x/logs").iterdir()} == {
        "us-east-1-h0.log",
        "us-west-1-h0.log",
        "us-west-1-h0.2.log",
    }


TALK = """
import os, socket, sys, time
if os.environ["RANK"] == "1":
    end, _ = socket.create_server(("", 8080)).accept()
else:
    while True:
        try:
            end = socket.create_connection(("us-east-1", 8080))
            break
        except OSError:
            time.sleep(0.1)
    print("connected")
try:
    for _ in range(300):
        end.sendall(b"x")
        time.sleep(0.1)
except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
    print("its connection was reset")
    sys.exit(0)
sys.exit(9)
"""


def test_connections_of_programs_are_reset_at_both_ends(tmp_path: Path) -> None:
    fault = ("--fault", "reset us-west-1/h0=us-east-1/h0 at 3s every 5s")
    status, out, err = ended(start_exec(tmp_path / "x", TWO, sys.executable, "-c", TALK, options=fault))
    assert status == 0, err
    assert out.count("its connection was reset") == 2 and "connected" in out
    events = [json.loads(line) for line in (tmp_path / "x/events.jsonl").read_text().splitlines()]
    assert next(event["link"] for event in events if event["event"] == "reset") == "us-west-1/h0=us-east-1/h0"


def test_a_server_that_never_gets_ready_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text("""
        [[start]]
        hosts = "us-east-1"
        run = "sleep 1000.375"
        ready = "port 8080"
        within_s = 1
        [[start]]
        run = "echo never"
    """)
    status, out, err = ended(start_exec(tmp_path / "x", TWO, options=("--start", str(tmp_path / "it.toml"))))
    assert status == 1 and "never" not in out
    assert "testbed: error: us-east-1-h0: no port 8080 within 1 s; its `ready` and `within_s` say so" in err
    assert not still_there("sleep 1000.375")
    assert "no port 8080" in json.loads((tmp_path / "x/exec.json").read_text())["error"]


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = ended(start_exec(tmp_path / "x", TWO, "true", options=("--publish", f"us-east-1:80={port}")))
    assert status == 2 and f"port {port} of this machine: Address already in use; take another one" in err


def test_one_that_fails_ends_the_others_and_is_the_exit_status(tmp_path: Path) -> None:
    script = "trap '' TERM; [ $RANK = 1 ] && exit 7; while :; do sleep 1; done # a-stubborn-one"
    status, _, err = ended(start_exec(tmp_path / "x", TWO, "bash", "-c", script))
    assert status == 7, err
    assert not still_there("a-stubborn-one")
    assert json.loads((tmp_path / "x/exec.json").read_text())["statuses"] == {"us-west-1/h0": 137, "us-east-1/h0": 7}


@pytest.mark.full
def test_the_others_go_on_when_asked(tmp_path: Path) -> None:
    script = "[ $RANK = 0 ] && exit 3; sleep 1; echo done"
    status, out, _ = ended(start_exec(tmp_path / "x", TWO, "sh", "-c", script, options=("--keep-going",)))
    assert status == 3 and "us-east-1-h0 | done" in out


def test_a_network_that_dies_ends_what_would_wait_for_it_and_the_record_is_kept(tmp_path: Path) -> None:
    process = start_exec(tmp_path / "x", TWO, "sh", "-c", "echo up; exec sleep 1000.375")
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        pass
    lines = [pid for pid in descendants(process.pid) if b"delayline" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    if not lines:
        process.kill()
        pytest.skip("the kernel delays packets itself here")
    os.kill(lines[0], signal.SIGKILL)
    status, _, complaint = ended(process, 60)
    assert status == 1 and "the delay line is dead" in complaint and not still_there("sleep 1000.375")
    record = json.loads((tmp_path / "x" / "exec.json").read_text())
    assert record["status"] == 1 and "the delay line is dead" in record["error"]
    assert "the delay line is dead" in (tmp_path / "x" / "summary.md").read_text()


def test_a_network_that_is_not_built_leaves_its_folder_empty_for_another_try(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s,src_region,dst_region,goodput_mbit\n1,us-west-1,us-east-1,0.001\n")
    options = ("--dilation", "50", "--trace", str(tmp_path / "t.csv"))
    status, _, complaint = ended(start_exec(tmp_path / "x", TWO, "true", options=options))
    assert status == 2 and "can be shaped here" in complaint
    assert list((tmp_path / "x").iterdir()) == []


def test_a_network_that_is_killed_is_told_of(tmp_path: Path) -> None:
    process = start_exec(tmp_path / "x", TWO, "sh", "-c", "echo up; exec sleep 1000.5")
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        pass
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in descendants(process.pid)}
    around = (b"unshare", b"init.py")  # whose command lines hold the same
    own = [pid for pid, words in lines.items() if b"exec" in words and not any(w.endswith(around) for w in words)]
    os.kill(own[0], signal.SIGKILL)
    status, _, complaint = ended(process, 60)
    assert status == 1 and "testbed: error: it was killed, for lack of memory maybe: its own process" in complaint


def descendants(pid: int) -> list[int]:
    """All processes that one has started, and those these have."""
    children = [child for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()]
    return [each for child in map(int, children) for each in (child, *descendants(child))]


@pytest.mark.full
def test_nothing_is_left_of_what_detached_itself(tmp_path: Path) -> None:
    script = "setsid sh -c 'trap \"\" TERM HUP; sleep 1000.125' >/dev/null 2>&1 & sleep 0.5"
    status, _, err = ended(start_exec(tmp_path / "x", TWO, "sh", "-c", script))
    assert status == 0, err
    assert not still_there("sleep 1000.125")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopping_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = start_exec(tmp_path / "x", TWO, "sh", "-c", "echo up; sleep 1000.25")
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        pass
    process.send_signal(number)
    status, _, err = ended(process)
    assert status == (130 if number == signal.SIGINT else -9), err
    until_s = time.monotonic() + 10
    while still_there("sleep 1000.25") and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not still_there("sleep 1000.25")
    if number == signal.SIGINT:
        assert json.loads((tmp_path / "x/exec.json").read_text())["status"] == 130


@pytest.mark.full
@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_an_ordinary_user_may_and_two_networks_do_not_meet(tmp_path: Path) -> None:
    """The same hosts and addresses at once, one of them as nobody in particular."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    other = [*ORDINARY_USER, readable_python()]
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o777)
        starts = Path(open_to_all, "it.toml")
        starts.write_text("""
            [[start]]
            hosts = "us-east-1"
            run = "iperf3 -s -1"
            ready = "port 5201"
            service = true
            [[start]]
            hosts = "us-west-1"
            run = "iperf3 -c us-east-1 -n 5000000"
        """)
        folders = [tmp_path / "x", Path(open_to_all, "y")]
        caches = [str(tmp_path), open_to_all]
        both = [
            start_exec(folder, TWO, options=("--start", str(starts)), python=python, XDG_CACHE_HOME=cache)
            for folder, python, cache in zip(folders, ([sys.executable], other), caches, strict=True)
        ]
        for process, folder in zip(both, folders, strict=True):
            status, _, err = ended(process)
            assert status == 0, err
            carried = json.loads((folder / "exec.json").read_text())["wan_bytes"]
            assert 4_000_000 < carried[FORTH] < 1.1 * 5_000_000 / PAYLOAD_PER_WIRE  # in blocks of 128 KiB


@pytest.mark.full
def test_a_host_that_writes_a_gigabyte_does_not_hold_up_the_others(tmp_path: Path) -> None:
    done = f"date +%s > {tmp_path}/now; mv {tmp_path}/now {tmp_path}/then"
    script = f"[ $RANK = 0 ] && exec head -c {10**9} /dev/zero; sleep 1; {done}"
    began_s = time.time()
    process = start_exec(tmp_path / "x", TWO, "sh", "-c", script)
    assert process.stdout is not None
    while not (tmp_path / "then").exists() and time.time() < began_s + 100:
        process.stdout.read(1 << 16)
    first_s = float((tmp_path / "then").read_text()) - began_s
    while process.stdout.read(1 << 20):
        pass
    took_s = time.time() - began_s
    assert process.wait(timeout=60) == 0
    assert first_s < 0.7 * took_s
    assert (tmp_path / "x/logs/us-west-1-h0.log").stat().st_size == 10**9
