"""The same faults on both fabrics: they come at the same times and hold steps up as long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from testbed.fabrics.registry import FABRICS
from testbed.record.reader import Run, load
from testbed.report.numbers import disturbed

pytestmark = [pytest.mark.emulation, pytest.mark.slow]

SETTINGS = {
    "data.dataset": "synthetic",
    "topology.workers_per_region": 1,  # two cores compute as fast as the modelled device: no dilation to speak of
    "training.batch_size": 32,
    "training.steps": 36,
    "run.eval_images": 50,
    "run.probe_steps": 0,
    "run.checkpoint_steps": 18,
    "compute.device": "m60",
}
FAULTS = [
    "partition us-west-1 at 1s for 1.5s",
    "slow us-east-1/w0 factor=4 at 7s for 1s",
    "pause us-east-1/lps at 9s for 2s",
]


def played(fabric: str, out: Path) -> Run:
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    faults = [word for fault in FAULTS for word in ("--fault", fault)]
    line = [
        sys.executable,
        "-m",
        "testbed",
        "run",
        "cifarnet",
        "--fabric",
        fabric,
        "--systems",
        "terngrad",
        "--no-gate",
    ]
    done = subprocess.run(
        [*line, "--quiet", "--out", str(out), *settings, *faults],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return load(next(out.glob("cifarnet/*")))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)
    return {fabric: played(fabric, tmp_path_factory.mktemp(fabric)) for fabric in ("virtual", "mininet")}


def longest_step_s(run: Run, span: disturbed.Span) -> float:
    """Of the steps that go on while a fault is in force, and the next, the longest."""
    done_s = run.results[0].steps["time_s"].to_numpy()
    begun_s = np.concatenate([[0.0], done_s[:-1]])
    return float((done_s - begun_s)[(done_s > span.begin_s) & (begun_s < span.end_s)].max())


def test_each_fault_comes_and_goes_at_its_time(both: dict[str, Run]):
    virtual, emulated = (disturbed.spans(run.results[0]) for run in both.values())
    for one, other in zip(virtual, emulated, strict=True):
        assert (one.kind, one.about) == (other.kind, other.about)
        assert other.begin_s == pytest.approx(one.begin_s, abs=0.1)
        assert other.end_s == pytest.approx(one.end_s, abs=0.1)


def test_steps_are_held_up_as_long(both: dict[str, Run]):
    for span in disturbed.spans(both["virtual"].results[0]):
        virtual_s, emulated_s = (longest_step_s(run, span) for run in both.values())
        assert emulated_s == pytest.approx(virtual_s, rel=0.1, abs=0.05), span
