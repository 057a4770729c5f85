"""Running the scenarios of `emulation_scenarios.py` in sandboxes, as this user or as an ordinary one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulation_runner import answer, scenario

from testbed.emulation import sandbox

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture(scope="session")
def emulation() -> None:
    """Skip where this machine cannot emulate."""
    reason = sandbox.available()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def probe(emulation: None) -> Callable[[str], dict[str, Any]]:
    """Run one scenario in a sandbox; returns what it saw."""

    def run(name: str) -> dict[str, Any]:
        return answer(scenario(name))

    return run


@pytest.fixture
def ordinary(emulation: None) -> Iterator[tuple[list[str], dict[str, str]]]:
    """An interpreter's command line and environment for an ordinary user: this one, or "nobody" when this is root."""
    if os.geteuid():
        yield [sys.executable], dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="testbed-nobody-") as home:  # tmp_path stands in a folder of root's
        Path(home).chmod(0o777)
        yield _as_nobody(home)


def _as_nobody(home: str) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    env = {**os.environ, "PYTHONPATH": path, "HOME": home, "XDG_CACHE_HOME": home}
    drop = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    version = sys.version_info[:2]
    check = (
        f"import subprocess, sys, mininet, pyroute2, testbed; assert sys.version_info[:2] == {version};"
        "subprocess.run([sys.executable, '-c', ''], check=True)"  # root may start what "nobody" then cannot
    )
    for python in (sys.executable, "/usr/bin/python3"):
        # this interpreter, its packages or this checkout may stand where others cannot read
        if subprocess.run([*drop, python, "-c", check], env=env, capture_output=True, cwd="/").returncode == 0:
            return [*drop, python], env
    pytest.skip("no interpreter with the packages that an ordinary user could run")
