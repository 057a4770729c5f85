"""Nothing is timed by the clock on the wall, which people and NTP set: a run does not notice that it jumps."""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path

import pytest
from small_runs import experiment, start

import testbed
from testbed.record import lines

pytestmark = pytest.mark.slow

PACKAGE = Path(testbed.__file__).parent
NAMES = ("time.time", "time.time_ns", "time.localtime", "time.ctime", "datetime.now", "datetime.today")
# What something is called, and when it was begun, for people to read.
MAY = {
    "cli/on_wan.py": 1,
    "cli/profile.py": 2,
    "cli/trace.py": 1,
    "fabrics/cluster/links.py": 1,
    "fidelity/report.py": 1,
    "harness/session.py": 2,
    "programs/wan.py": 1,
}


def read(tree: ast.Module) -> list[str]:
    """The wall's clock where it is read."""
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
    }
    assert not imported & {"time", "time_ns", "localtime", "ctime"}
    return [text for node in ast.walk(tree) if isinstance(node, ast.Attribute) and (text := ast.unparse(node)) in NAMES]


def test_only_names_and_dates_are_taken_from_it() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "shipped" not in path.parts and (where := read(ast.parse(path.read_text()))):
            found[str(path.relative_to(PACKAGE))] = len(where)
    assert found == MAY


def test_a_run_is_the_same_where_it_jumps(small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = experiment(systems={"baseline": {}}, training={"steps": 4})
    plain = start(it, tmp_path / "plain") / "baseline/seed-0"
    real, jumps = time.time, itertools.cycle((0.0, -3600.0, 86_400.0, -1e9))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    jumped = start(it, tmp_path / "jumped") / "baseline/seed-0"
    for name in (lines.FILE_NAME, "model.npz"):
        assert (jumped / name).read_bytes() == (plain / name).read_bytes()
