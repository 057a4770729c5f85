"""Running the scenarios of `emulation_scenarios.py` in sandboxes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).with_name("emulation_scenarios.py")
SUPERVISE = "import sys; from testbed.emulation import sandbox; sys.exit(sandbox.run(sys.argv[1:]))"


def supervised(*argv: str, python: str = sys.executable) -> list[str]:
    """A command line that runs `argv` in a sandbox, supervised by a process of its own."""
    return [python, "-c", SUPERVISE, *argv]


def scenario(name: str, python: str = sys.executable) -> list[str]:
    """A command line that runs one scenario in a sandbox."""
    return supervised(python, str(SCENARIOS), name, python=python)


def answer(command: list[str], timeout_s: float = 90, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON on the last line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
