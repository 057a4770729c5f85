"""A command in its own namespaces: it sees only itself, gets each signal once, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from emulation_runner import answer, scenario, supervised

from testbed.emulation import init, sandbox
from testbed.errors import NetworkError

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("emulation")]

MARK = "TESTBED_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """The processes on this machine that inherited a mark, and their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["no-such-command"], 127),
    ],
)
def test_the_exit_status_is_the_commands(command: list[str], status: int) -> None:
    assert sandbox.run(command) == status


def test_the_command_is_alone_with_a_loopback_interface_and_is_root_there() -> None:
    script = "ps -e -o pid= | wc -l; ls /sys/class/net /run; id -u; ip -br address show lo"
    done = subprocess.run(supervised("sh", "-c", script), capture_output=True, text=True, check=True)
    processes, *rest = done.stdout.split("\n")
    assert int(processes) <= 4  # process 1, the shell, ps, wc
    assert "127.0.0.1/8" in done.stdout
    assert "0" in rest


def test_the_devices_of_the_machine_stay_usable() -> None:
    """A GPU's driver is reached by files such as /dev/nvidiactl, which anybody may open."""
    script = "from pathlib import Path; print(sorted(map(str, Path('/dev').iterdir()))); Path('/dev/null').open('r+b')"
    done = subprocess.run(supervised(sys.executable, "-c", script), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sorted(map(str, Path("/dev").iterdir())))


def test_it_knows_whether_it_is_inside() -> None:
    assert not sandbox.inside()
    script = "from testbed.emulation import sandbox as s; raise SystemExit(0 if s.inside() else 1)"
    assert sandbox.run([sys.executable, "-c", script]) == 0


def test_the_network_is_refused_outside() -> None:
    from testbed.emulation.network import EmulatedNetwork
    from testbed.wan.plan import NetworkPlan
    from testbed.wan.profile import Link, Profile

    with pytest.raises(NetworkError, match=r"sandbox\.run"):
        EmulatedNetwork(NetworkPlan(("a/w0",), Profile("p", "p", ("a",), Link(1000, 0.2), {})))


def test_orphans_end_with_the_command() -> None:
    mark = uuid.uuid4().hex
    script = "(setsid sleep 300 &) ; exit 0"
    assert sandbox.run(["sh", "-c", script], env={**os.environ, MARK: mark}) == 0
    assert not marked(mark)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("os.kill(os.getpid(), 9)", ["its own process (SIGKILL)"]),
        ("subprocess.Popen(['sleep', '300']).kill(); time.sleep(0.1); os._exit(1)", ["sleep (SIGKILL)"]),
        ("subprocess.Popen(['sleep', '300']).kill(); time.sleep(0.1); os._exit(0)", []),
        ("sys.exit(3)", []),
    ],
)
def test_who_was_killed_when_a_command_failed_is_told(script: str, told: list[str]) -> None:
    heard: list[str] = []
    sandbox.run([sys.executable, "-c", f"import os, subprocess, sys, time; {script}"], witness=heard.append)
    assert heard == told


def test_of_many_deaths_the_last_are_told_and_the_commands_own() -> None:
    """Some thousands would not fit into the pipe, and process 1 would wait for ever for room in it."""
    heard: list[str] = []
    orphans = f"""
import os, time
for _ in range({init.TOLD + 20}):
    if os.fork() == 0:
        if os.fork() == 0:
            os.kill(os.getpid(), 9)
        os._exit(0)
time.sleep(0.5)
os.kill(os.getpid(), 15)
"""
    sandbox.run([sys.executable, "-c", orphans], witness=heard.append)
    assert len(heard) == init.TOLD + 1
    assert heard[-1] == "its own process (SIGTERM)"


def test_the_death_of_process_1_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    mark, heard = uuid.uuid4().hex, []

    def kill() -> None:
        while not any(line.startswith("sleep 300") for line in marked(mark).values()):
            time.sleep(0.05)
        (first,) = (pid for pid, line in marked(mark).items() if "init.py" in line and "unshare" not in line)
        os.kill(first, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    status = sandbox.run(["sleep", "300"], env={**os.environ, MARK: mark}, witness=heard.append)
    killer.join()
    assert status != 0
    assert heard == ["process 1 of its sandbox"]
    assert capfd.readouterr().err == ""


def test_scratch_lies_in_the_sandbox_and_goes_with_it() -> None:
    script = "from testbed.emulation import sandbox\nwith sandbox.scratch() as folder: print(folder, folder.is_dir())"
    done = subprocess.run(supervised(sys.executable, "-c", script), capture_output=True, text=True, check=True)
    folder, there = done.stdout.split()
    assert there == "True"
    assert len(folder) < 40, "Ray's sockets have 107 bytes for their paths"
    assert not Path(folder).exists()
    with pytest.raises(NetworkError, match="only a sandbox"), sandbox.scratch():
        pass


def test_what_users_keep_in_run_is_there_and_the_machines_daemons_are_not() -> None:
    """In a sandbox's own /run, where a test may make what it wants."""
    look = "echo written > record; cat ../told; cat /run/link/told; ls -A /run; pwd"
    script = f"""
import os, subprocess
from pathlib import Path
from testbed.emulation import sandbox
for folder in ("media/anna/disk", "nscd", "systemd/resolve"):
    (Path("/run") / folder).mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "none", "/run/media/anna"], check=True)
Path("/run/media/anna/disk").mkdir()
Path("/run/media/anna/told").write_text("a word\\n")
Path("/run/link").symlink_to("media/anna")
Path("/run/socket").touch()
os.chdir("/run/media/anna/disk")
assert sandbox.run(["sh", "-c", {look!r}]) == 0
print(Path("/run/media/anna/disk/record").read_text())
"""
    done = subprocess.run(supervised(sys.executable, "-c", script), capture_output=True, text=True, check=True)
    first, second, *names, here, record = done.stdout.split("\n")[:-2]
    assert (first, second, here, record) == ("a word", "a word", "/run/media/anna/disk", "written")
    assert {"link", "media", "netns", "socket"} <= set(names)
    assert not {"nscd", "systemd"} & set(names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_supervisors_group_reaches_the_command_once(number: signal.Signals) -> None:
    """As a terminal's Ctrl-C does it: the whole foreground group is signalled."""
    command = scenario("signals")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        os.killpg(process.pid, number)
        assert process.stdout.read() == f'{{"signals": [{int(number)}]}}\n'
    assert process.returncode == 0


def test_nothing_is_left_after_kill_9() -> None:
    before, mark = interfaces(), uuid.uuid4().hex
    command = scenario("hold")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: mark}) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        assert len(marked(mark)) > 8  # supervisor, unshare, process 1, probe, nodes, delay line
        process.kill()
    deadline = time.monotonic() + 20
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(mark) == {}
    assert interfaces() == before


def test_an_ordinary_user_needs_no_privilege(ordinary: tuple[list[str], dict[str, str]]) -> None:
    python, env = ordinary
    seen = answer([*python[:-1], *scenario("refused", python=python[-1])], env=env)
    assert "no link" in seen


def test_an_ordinary_users_path_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `import testbed` finds it in a script of theirs: `tc` lies in /usr/sbin."""
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    assert "tc" not in (sandbox.available() or "")
