"""Work in processes of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.harness.pool import Errand, run_all

pytestmark = pytest.mark.slow  # each process begins with importing torch

PROGRAM = """
import sys
from pathlib import Path
from time import sleep

from testbed.errors import Interrupted
from testbed.harness.pool import Errand, run_all, signals_interrupt


def wait(folder, experiment):
    try:
        with signals_interrupt():
            print("begun", flush=True)
            sleep(60)
    except KeyboardInterrupt:
        raise Interrupted("stopped; go on with --resume") from None


if __name__ == "__main__":
    run_all([Errand("work", wait, Path(), {})], 1)
"""


SLOW = """
import os
import sys
from pathlib import Path
from time import sleep

from testbed.harness.pool import Errand, run_all

if __name__ == "__mp_main__":  # what a new process imports before it has any handler
    os.write(1, b"importing\\n")  # in one go: two processes do so at once
    sleep(60)


def nothing(folder, experiment):
    pass


if __name__ == "__main__":
    try:
        run_all([Errand(f"work {number}", nothing, Path(), {}) for number in range(2)], 2)
    except KeyboardInterrupt:
        sys.exit("stopped")
"""


def _note_threads(folder: Path, experiment: dict[str, Any]) -> None:
    import torch

    (folder / "threads").write_text(str(torch.get_num_threads()))


def test_those_at_once_share_the_cores(tmp_path: Path) -> None:
    """Two that each took all cores for their tests would wait for each other: four times as long."""

    def share(processes: int) -> int:
        run_all([Errand("work", _note_threads, tmp_path, {})], processes)
        return int((tmp_path / "threads").read_text())

    alone = share(1)
    assert share(2) == max(1, alone // 2)
    assert share(alone + 1) == 1


def test_what_it_would_have_answered_a_user_reads_once_the_one_that_began_it_was_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
        assert process.stderr.read() == "testbed: stopped; go on with --resume\n"  # ends with the last who holds it


def test_a_stop_from_the_terminal_while_processes_begin_says_one_thing(tmp_path: Path) -> None:
    """A Ctrl-C comes to all of them: the one that began the others stops them, and no other says where it was."""
    (tmp_path / "program.py").write_text(SLOW)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout and process.stderr
        assert [process.stdout.readline() for _ in range(2)] == ["importing\n"] * 2
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.read() == "stopped\n"
