"""Without assertions (`python -O`) the testbed is the same: no result, and no refusal of wrong input, hangs on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import plain, toml

import testbed
from testbed.record import lines

ROOT = Path(testbed.__file__).parents[1]


def begun(option: tuple[str, ...], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, *option, "-P", "-m", "testbed", "run", *arguments]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TESTBED_DATA": str(folder / "data")}
    return subprocess.Popen(line, cwd=folder, env=given, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_is_the_same_without_assertions(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(toml(plain(training={"steps": 3}, systems={"terngrad": {}})))
    faults = ["--fault", "slow */w0 factor=2 at 0.05s for 0.2s", "--fault", "reset us-west-1/lps=us-east-2/gs at 0.1s"]
    optimized = begun(("-OO",), tmp_path, "small.toml", "--out", "optimized", "--quiet", *faults)
    usual = begun((), tmp_path, "small.toml", "--out", "usual", "--quiet", *faults)
    for process in (optimized, usual):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    found = [next(tmp_path.glob(f"{name}/small/*/terngrad/seed-0")) for name in ("optimized", "usual")]
    for name in (lines.FILE_NAME, "model.npz"):
        assert (found[0] / name).read_bytes() == (found[1] / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "line"),
    [("training.steps=0", "training.steps is 0"), ("systems.terngrad.patience_s=-1", "patience_s is -1")],
)
def test_what_is_wrong_is_said_all_the_same(tmp_path: Path, key: str, line: str) -> None:
    (tmp_path / "small.toml").write_text(toml(plain()))
    process = begun(("-O",), tmp_path, "small.toml", "--set", key)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2 and line in said and "Traceback" not in said
