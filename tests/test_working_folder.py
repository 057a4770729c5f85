"""The folder a user stands in is data: no file in it is executed because it is called like a module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import plain, toml

import testbed

PACKAGE = Path(testbed.__file__).parent
NAMES = ("profile", "pickle", "socket", "signal", "queue", "numpy", "torch", "ray")
EXECUTED = 'import os\nopen(os.environ["EXECUTED"], "a").write(__file__ + "\\n")\nraise ImportError(__file__)\n'
# As an installer writes it.
SCRIPT = 'import sys, testbed.cli\nif __name__ == "__main__":\n    sys.exit(testbed.cli.main())\n'


def test_every_python_is_started_without_the_current_folder() -> None:
    bare = re.compile(r"sys\.executable(?!, \"-(I|P)\"| = )")
    found = [str(path) for path in PACKAGE.rglob("*.py") if bare.search(path.read_text())]
    assert not found, 'take testbed.interpreter, or "-I"'
    makefile = PACKAGE.parent / "Makefile"
    assert not re.findall(r"\$\(BIN\)/python -[cm].*", makefile.read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(EXECUTED)
    (tmp_path / "mine.toml").write_text(toml(plain(systems={"baseline": {}, "terngrad": {}}, training={"steps": 2})))
    return tmp_path


def run(folder: Path, way: str, *options: str) -> None:
    environment = {**os.environ, "EXECUTED": str(folder / "executed"), "TESTBED_DATA": str(folder / "data")}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    script = folder / "bin" / "testbed"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    started = ["-m", "testbed"] if way == "module" else [str(script)]
    command = [sys.executable, *started, "run", "mine.toml", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert not (folder / "executed").exists(), (folder / "executed").read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["module", pytest.param("script", marks=pytest.mark.full)])
def test_a_file_called_like_a_module_is_not_executed_by_a_run(folder: Path, way: str) -> None:
    run(folder, way, "--jobs", "2")


@pytest.mark.emulation
@pytest.mark.full
def test_nor_by_the_actors_of_an_emulated_one(folder: Path) -> None:
    run(folder, "script", "--fabric", "mininet", "--no-gate", "--set", "topology.workers_per_region=1")
