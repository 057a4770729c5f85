"""The prompt in front of an emulated WAN, typed into and fed from a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.emulation import sandbox
from testbed.record import lines
from testbed.record.events import Capacity, Cut, Mark

pytestmark = pytest.mark.emulation

FORTH, BACK = "us-west-1>us-east-1", "us-east-1>us-west-1"
LINE = [sys.executable, "-m", "testbed", "shell", "weightgrad-ec2", "--no-gate", "--hosts", "us-west-1=1,us-east-1=1"]
SENDER = "import socket; s = socket.create_connection(('us-east-1', 9)); [s.sendall(bytes(9999)) for _ in range(10**6)]"
ASK = "bash -c 'echo > /dev/tcp/us-east-1/10'"
SINK = "import socket; s = socket.create_server(('', 9)).accept()[0]; [None for _ in iter(lambda: s.recv(65536), b'')]"


@pytest.fixture(autouse=True, scope="module")
def _emulation() -> None:
    if reason := sandbox.available():
        pytest.skip(reason)


def test_what_is_typed_changes_what_programs_see(tmp_path: Path) -> None:
    script = f"""
        # a program that sends as fast as it can, its link changed and cut under it
        us-east-1-h0 {sys.executable} -c "{SINK}" &
        sleep 0.5
        us-west-1-h0 {sys.executable} -c "{SENDER}" &
        sleep 1
        rate {FORTH} 20
        sleep 2
        links
        mark it is cut
        cut us-west-1=us-east-1 5
        sleep 2
        links
        us-west-1-h0 timeout 1 {ASK}
        sleep 2
        us-west-1-h0 timeout 1 {ASK}
        us-east-1-h0 sh -c 'echo I am $TESTBED_HOST'
        delay {BACK} 100
        rate us-west-1>us-east-2 4
        us-west-1-h0 sh -c 'exit 3'
        nonsense
    """
    done = subprocess.run(
        [*LINE, "--out", str(tmp_path / "x")], input=script, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 124, done.stderr  # of what failed, the first
    told = [line.removeprefix("testbed: ") for line in done.stderr.splitlines()]
    assert "no link us-west-1>us-east-2; `links` lists them" in told
    assert "sh -c exit 3 ended with 3" in told
    asked = [line.rpartition(" ")[2] for line in told if line.startswith("timeout 1")]
    assert asked == ["124", "1"], "in the cut no answer, after it one: the port is closed"
    assert any(line.startswith("no command of this prompt, see `help`: no host or region 'nonsense'") for line in told)
    assert "I am us-east-1-h0" in done.stdout
    seen = [(float(rate), float(now)) for rate, now in re.findall(rf"^{FORTH}\s+(\S+)\s+(\S+)", done.stdout, re.M)]
    assert seen[0][0] == 20 and 1 < seen[0][1] < 25, "at most the new rate"
    assert seen[1] == (20, 0), "nothing passes a cut"
    events = [lines.decode(line) for line in lines.whole_lines(tmp_path / "x/events.jsonl")]
    assert [event.text for event in events if isinstance(event, Mark)] == ["it is cut"]
    assert [(event.link, event.goodput_mbit, event.rtt_ms) for event in events if isinstance(event, Capacity)] == [
        (FORTH, 20, None),
        (BACK, 99, 200),
    ]
    cuts = [event for event in events if isinstance(event, Cut)]
    assert [(event.link, event.healed) for event in cuts] == [
        (FORTH, False),
        (BACK, False),
        (FORTH, True),
        (BACK, True),
    ]
    assert cuts[2].time_s - cuts[0].time_s == pytest.approx(5, abs=0.5)
    assert (tmp_path / "x/links.png").exists()
    facts = json.loads((tmp_path / "x/exec.json").read_text())
    assert facts["status"] == 124 and facts["wan_bytes"][FORTH] > 5e6


def test_what_windows_do_not_fill_is_said_and_seconds_are_the_networks(tmp_path: Path) -> None:
    script = f"""
        delay {BACK} 500
        rate us-west-1=us-east-1 25
        rate {FORTH} 40
        mark one
        sleep 0.5
        mark other
    """
    line = [*LINE, "--dilation", "3", "--out", str(tmp_path / "x")]
    done = subprocess.run(line, input=script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"testbed: (\S+): a connection gets at most (\S+) Mbit/s; (.*)", done.stderr)
    assert [link for link, *_ in told] == [BACK, FORTH, FORTH]
    assert all(why.startswith("its window was made for 99 Mbit/s and a round trip of 59.") for *_, why in told)
    assert {float(mbit) for _, mbit, _ in told} == {31.7}  # 32 x 65,535 bytes in 30 + 500 ms
    marks = [lines.decode(line) for line in lines.whole_lines(tmp_path / "x/events.jsonl")]
    one, other = (event.time_s for event in marks if isinstance(event, Mark))
    assert 0.5 <= other - one < 1.0, "not a third of it"


class Terminal:
    """A program that is typed at."""

    def __init__(self, *command: str) -> None:
        self.process, self._ours = self._start(command)
        self.shown = ""

    @staticmethod
    def _start(command: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        setsid = ["setsid", "--ctty", *command]
        process = subprocess.Popen(
            setsid, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"}
        )
        os.close(theirs)
        return process, ours

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str, within_s: float = 60) -> None:
        """Read until `text` is shown; what stands before it is not looked at again."""
        until_s = time.monotonic() + within_s
        while text not in self.shown:
            ready, _, _ = select.select([self._ours], [], [], until_s - time.monotonic())
            assert ready, f"{text!r} is not shown: {self.shown!r}"
            try:
                self.shown += os.read(self._ours, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended before {text!r} was shown: {self.shown!r}") from None
        self.shown = self.shown.partition(text)[2]


def test_a_terminal_on_a_host_has_job_control_and_ctrl_c_ends_one_thing(tmp_path: Path) -> None:
    terminal = Terminal(*LINE, "--out", str(tmp_path / "x"))
    terminal.until("weightgrad-ec2> ")
    terminal.type("us-east-1-h0 bash --norc\n")
    terminal.type("PS1='here: '; echo I am $TESTBED_HOST\n")
    terminal.until("I am us-east-1-h0")
    terminal.until("here: ")
    terminal.type("sleep 1000.5\n")
    time.sleep(1)
    terminal.type("\x03")  # Ctrl-C
    terminal.until("here: ")
    terminal.type("tty; exit\n")
    terminal.until("/dev/pts/")
    terminal.until("weightgrad-ec2> ")
    terminal.type("sleep 1000\n")
    time.sleep(1)
    terminal.type("\x03")
    terminal.until("weightgrad-ec2> ")
    terminal.type("\x04")  # Ctrl-D
    terminal.until("record: ")
    assert terminal.process.wait(timeout=30) == 0
    assert json.loads((tmp_path / "x/exec.json").read_text())["status"] == 0
