"""`testbed exec` as a process of its own, over two regions."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import testbed
from testbed.wan import profile as profiles

TWO = "us-west-1=1,us-east-1=1"
LINK = profiles.load("weightgrad-ec2").link("us-west-1", "us-east-1")
FORTH, BACK = "us-west-1>us-east-1", "us-east-1>us-west-1"


def start_exec(
    folder: Path,
    hosts: str,
    *command: str,
    options: tuple[str, ...] = (),
    python: Sequence[str] = (sys.executable,),
    **environment: str,
) -> subprocess.Popen[str]:
    asked = ["weightgrad-ec2", "--hosts", hosts, "--no-gate", "--out", str(folder), *options]
    line = [*python, "-m", "testbed", "exec", *asked, *(["--", *command] if command else [])]
    where = os.pathsep.join([str(Path(testbed.__file__).parents[1]), sysconfig.get_paths()["purelib"]])
    told = {**os.environ, "PYTHONPATH": where, **environment}
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=told)


def ended(process: subprocess.Popen[str], timeout_s: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err
