"""A script of 25 lines outside the package with a model, a data set and a system of its own, on both fabrics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import testbed

SCRIPT = """\
import sys, torch, testbed
from testbed.codecs import ErrorFeedback, TopK

@testbed.model("perceptron")
def perceptron(outputs: int, hidden: int = 16) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))

@testbed.dataset("rings")
def rings(folder: testbed.DataFolder) -> testbed.Dataset:
    x = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    y = (x.norm(dim=1) > 1.2).long()
    return testbed.Arrays(x[:3000], y[:3000], x[3000:], y[3000:])

class Largest(testbed.CodecSystem):
    name = "largest"
    def codec(self, sender):
        return ErrorFeedback(TopK(self.task.layout, 0.2))

CHANGES = {"model": {"name": "perceptron"}, "data": {"dataset": "rings"}, "topology.workers_per_region": 1,
           "training.steps": 60, "training.batch_size": 64, "target": {"loss": 0.6}, "run.gate": False}
if __name__ == "__main__":
    run = testbed.run("cifarnet", systems=["baseline", "largest"], set=CHANGES, fabric=sys.argv[1])
    run.plot("loss").savefig("loss.png")
    run.summary.to_csv("table.csv")
"""


ON = [
    pytest.param("virtual", marks=pytest.mark.slow),
    pytest.param("mininet", marks=[pytest.mark.emulation, pytest.mark.full]),
]


@pytest.mark.parametrize("fabric", ON)
def test_a_script_with_parts_of_its_own(tmp_path: Path, fabric: str) -> None:
    assert len(SCRIPT.splitlines()) <= 25
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(testbed.__file__).parents[1])}
    command = [sys.executable, "script.py", fabric]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "table.csv")
    assert list(table["system"]) == ["baseline", "largest"]
    assert table["final_loss"].lt(0.69).all() and table["final_accuracy"].gt(0.5).all()
    assert (tmp_path / "loss.png").stat().st_size > 10_000
