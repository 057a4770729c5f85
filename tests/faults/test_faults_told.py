"""A fault that did nothing is said to have done nothing: no system is taken to have withstood what never came to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import experiment, start

from testbed.errors import InputError
from testbed.harness.notes import faults_without_effect
from testbed.report.numbers.sentences import caveats
from testbed.report.numbers.summary import read

SYSTEMS = {"baseline": {}, "allreduce": {}}


@pytest.mark.slow
def test_a_run_that_is_over_before_a_fault_says_so(small_data: None, tmp_path: Path) -> None:
    faults = ["slow */w0 factor=2 at 0s for 1s", "partition us-west-1 at 1h for 1s"]
    run, frame = read(start(experiment(systems={"baseline": {}}, faults=faults), tmp_path))
    [said] = [line for line in caveats(run, frame) if "never came" in line]
    assert said.startswith("Fault 1 (partition) never came for Baseline: done after ")


def test_a_fault_of_what_a_system_does_not_use_is_noted(small_data: None, tmp_path: Path) -> None:
    faults = [
        "cut us-west-1>us-east-1 at 1s",  # a ring's, and no tree's
        "pause us-west-1/lps at 1s for 1s",  # a tree's, and no ring's
        "blackhole us-west-1/lps=us-east-2/gs at 1s for 1s",
        "slow */w0 factor=2 at 1s",
        "delay us-east-2>us-east-1 ms=5 at 1s",
    ]
    it = experiment(systems=SYSTEMS, faults=faults)
    said = faults_without_effect(it)
    assert said == [
        "Fault 0 (cut us-west-1>us-east-1) touches nothing that is used by baseline.",
        "Fault 1 (pause us-west-1/lps) touches nothing that is used by allreduce.",
        "Fault 2 (blackhole us-west-1/lps=us-east-2/gs) touches nothing that is used by allreduce.",
        "Fault 4 (delay us-east-2>us-east-1) touches nothing that is used by allreduce.",
    ]
    run, frame = read(start(experiment(systems={"baseline": {}}, faults=faults[:1]), tmp_path))
    assert said[0] in caveats(run, frame)


@pytest.mark.parametrize("kind", ["blackhole", "reset"])
def test_a_connection_that_no_system_has_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match=r"faults\[0\]: us-west-1/w0 and us-east-1/w0 have no connection in this run"):
        experiment(faults=[f"{kind} us-west-1/w0=us-east-1/w0 at 1s"])
    experiment(systems=SYSTEMS, faults=[f"{kind} us-west-1/w0=us-west-1/w1 at 1s"])  # a ring's neighbours
