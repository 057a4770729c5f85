"""Work on several links at once keeps nobody waiting who is told to stop."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from testbed.fidelity.threads import at_once

WAITING = """
import threading
from testbed.fidelity.threads import at_once
print("begun", flush=True)
at_once(lambda item: threading.Event().wait(300), range(2))
"""


def test_results_come_in_the_order_of_what_was_asked() -> None:
    assert at_once(lambda item: item * item, range(9)) == [item * item for item in range(9)]


def test_what_one_raised_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        at_once(lambda item: 1 / item, (1, 0, 2))


def test_ctrl_c_ends_a_program_whose_threads_are_still_at_work() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
