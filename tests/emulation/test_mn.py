"""Mininet's own command line runs in a sandbox, and when it fails it cleans that and not the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from testbed.interpreter import PYTHON

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("emulation")]
ROOT = Path(__file__).parents[2]


def mn(*arguments: str) -> subprocess.CompletedProcess[str]:
    custom = ["--custom", "topologies/weightgrad_ec2.py", *arguments]
    command = [*PYTHON, "topologies/mn.py", *custom]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_it_builds_the_topology() -> None:
    done = mn("--topo", "weightgrad,workers=1", "--test", "none")
    assert done.returncode == 0, done.stderr
    assert "r1lps r1w0" in done.stderr and "Done" in done.stderr


def test_what_it_cleans_when_it_fails_is_its_own() -> None:
    with (
        NamedTemporaryFile(dir="/tmp", suffix=".log") as log,
        subprocess.Popen([sys.executable, "-c", "input()", "mininet:"], stdin=subprocess.PIPE) as named,
    ):
        done = mn("--topo", "weightgrad,workers=none", "--test", "none")
        assert "Cleanup complete" in done.stderr
        assert Path(log.name).is_file(), "rm -f /tmp/*.log"
        assert named.poll() is None, "pkill -9 -f mininet:"
        named.kill()
